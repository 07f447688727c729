"""Golden numbers, invariants and mutations of FedProx."""

from __future__ import annotations

import pytest

from tests.conformance.methods.cases import Case, values
from tests.conformance.problem import (
    ROUNDS,
    SHARE,
    W0,
    Array,
    Labels,
    assert_close,
    both_executors,
    gradient,
    local_sgd,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of

CASES = {"fedprox": Case([{"mu": 0.0}], values("mu", 0.01, 0.1, 0.5, 0.0))}


@both_executors
@pytest.mark.parametrize("mu", [None, 0.3])
def test_fedprox(executor: str, mu: float | None) -> None:
    x = W0.copy()
    for round in range(ROUNDS):
        start = x

        def proximal(weights: Array, pixels: Array, labels: Labels, start: Array = start) -> Array:
            return gradient(weights, pixels, labels) + (0.01 if mu is None else mu) * (weights - start)

        x = mean(SHARE, [local_sgd(start, client, round, proximal) for client in range(3)])
    settings = {} if mu is None else {"mu": mu}
    assert_close(trained({"name": "fedprox", **settings}, executor).x["head.weight"], x)


MUTATIONS = mutations_of(
    "fedprox",
    ("not halved", "self.mu / 2 * squared", "self.mu * squared"),
    ("sign flipped", "self.mu / 2 * squared", "-self.mu / 2 * squared"),
    ("norm not squared", "((w[name] - x) ** 2).sum()", "(((w[name] - x) ** 2).sum() + 1e-12).sqrt()"),
    ("mean for sum", "((w[name] - x) ** 2).sum()", "((w[name] - x) ** 2).mean()"),
    ("pulls to -x", "(w[name] - x)", "(w[name] + x)"),
    ("pulls to 0", "(w[name] - x)", "w[name]"),
    ("no gradient, as the published value", "(w[name] - x)", "(w[name].detach() - x)"),
    ("mu as the published default", "Field(ge=0)] = 0.01", "Field(ge=0)] = 1.0"),
    ("mu ignored", "self.mu / 2 * squared", "squared / 2"),
)
