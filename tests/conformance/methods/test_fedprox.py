"""Golden numbers, invariants and mutations of FedProx."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.methods.cases import Case, assert_penalty_gradient, batch_of, context_of, parsed, values
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


def test_the_gradient_by_hand() -> None:
    """A parameter without x stays on the client."""
    w = {name: torch.linspace(-1, 2, 6, dtype=torch.float64) for name in ("shared", "own")}
    context = context_of({"shared": w["shared"].flip(0)})
    empty = torch.zeros(2, 3, dtype=torch.float64)
    assert_penalty_gradient(parsed("fedprox", mu=0.3), w, batch_of(empty, empty, [0, 1]), context)


MUTATIONS = mutations_of(
    "fedprox",
    ("not halved", "self.mu / 2 * squared", "self.mu * squared"),
    ("sign flipped", "self.mu / 2 * squared", "-self.mu / 2 * squared"),
    ("norm not squared", "((w[name] - x) ** 2).sum()", "(((w[name] - x) ** 2).sum() + 1e-12).sqrt()"),
    ("mean for sum", "((w[name] - x) ** 2).sum()", "((w[name] - x) ** 2).mean()"),
    ("pulls to -x", "((w[name] - x)", "((w[name] + x)"),
    ("pulls to 0", "((w[name] - x)", "(w[name]"),
    ("no gradient, as the published value", "((w[name] - x)", "((w[name].detach() - x)"),
    ("mu as the published default", "Field(ge=0)] = 0.01", "Field(ge=0)] = 1.0"),
    ("mu ignored", "self.mu / 2 * squared", "squared / 2"),
    ("by hand: pulls to 0", "self.mu * (w[name] - x)", "self.mu * w[name]"),
    ("by hand: halved", "self.mu * (w[name] - x)", "self.mu / 2 * (w[name] - x)"),
    ("by hand: pushes", "self.mu * (w[name] - x)", "self.mu * (x - w[name])"),
)
