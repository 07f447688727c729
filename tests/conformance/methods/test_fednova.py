"""Golden numbers, invariants and mutations of FedNova."""

from __future__ import annotations

import pytest

from flbench.engine.optimizers import Sgd
from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, after, cohort_of
from tests.conformance.problem import (
    ROUNDS,
    SHARE,
    UNEQUAL,
    W0,
    assert_close,
    both_executors,
    local_sgd,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference

CASES = {"fednova": Case([{}], tolerance=1e-14)}


@both_executors
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova(executor: str, momentum: float) -> None:
    """Count a_k: the sum of the factors of all gradients in the last weights, without the learning rate."""
    a = []
    for steps in UNEQUAL:
        velocity = total = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            total += velocity
        a.append(total)
    x = W0.copy()
    for round in range(ROUNDS):
        ends = [local_sgd(x, k, round, steps=UNEQUAL[k], momentum=momentum) for k in range(3)]
        normalised = [(end - x) / a_k for end, a_k in zip(ends, a, strict=True)]
        x = x + 0.9 * sum(SHARE * a) * mean(SHARE, normalised)
    trainer = trained({"name": "fednova", "server_lr": 0.9}, executor, steps=UNEQUAL, momentum=momentum)
    assert_close(trainer.x["head.weight"], x)


def test_fednova_with_equal_steps_is_fedavg() -> None:
    for momentum in (0.0, 0.9):
        sgd = Sgd(0.1, momentum)
        assert largest_difference(after(METHODS.parse("fednova"), sgd=sgd), after(Method(), sgd=sgd)) < 1e-14


def test_fednova_gives_clients_with_many_steps_less_weight() -> None:
    weights = METHODS.parse("fednova").delta_weights(cohort_of([0.5, 0.5], [1, 9]))
    assert weights == pytest.approx([2.5, 2.5 / 9], abs=1e-15)  # 0.5 / a_k times the mean of 1 and 9


_A = "(k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)"
MUTATIONS = mutations_of(
    "fednova",
    ("momentum ignored", _A, "k"),
    ("momentum not summed over steps", _A, "k / (1 - momentum)"),
    ("one step too few", "momentum**k", "momentum ** (k - 1)"),
    ("sign in the sum", "(k - momentum", "(k + momentum"),
    ("not scaled back", "p * effective / a_k", "p / a_k"),
    ("not normalised", "p * effective / a_k", "p * effective"),
    ("FedAvg", "p * effective / a_k", "p"),
    ("clients count equally", "p * effective / a_k", "effective / a_k / len(a)"),
    ("upside down", "p * effective / a_k", "p * a_k / effective"),
    ("effective steps not weighed", "sum_in_order(p * a_k for", "sum_in_order(a_k / len(a) for"),
    ("most steps for effective ones", "p * effective / a_k", "p * max(a) / a_k"),
)
