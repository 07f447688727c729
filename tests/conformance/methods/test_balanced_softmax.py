"""Golden numbers, invariants and mutations of balanced softmax."""

from __future__ import annotations

import numpy as np

from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.conformance.methods.cases import after
from tests.conformance.problem import (
    COUNTS,
    ROUNDS,
    SHARE,
    W0,
    Array,
    Gradient,
    Labels,
    assert_close,
    both_executors,
    local_sgd,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients


@both_executors
def test_balanced_softmax(executor: str) -> None:
    """The probability of class c is n_c exp(z_c) over their sum."""

    def balanced(counts: Labels) -> Gradient:
        def of(weights: Array, pixels: Array, labels: Labels) -> Array:
            odds = counts * np.exp(pixels @ weights.T)
            error = odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[labels]
            return np.asarray((error / len(labels)).T @ pixels)

        return of

    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round, balanced(COUNTS[client])) for client in range(3)])
    assert_close(trained("balanced-softmax", executor).x["head.weight"], x)


def test_balanced_softmax_is_fedavg_on_clients_with_equally_many_samples_of_each_class() -> None:
    clients, balanced = toy_clients((18, 12, 30)), METHODS.parse("balanced-softmax")
    assert largest_difference(after(balanced, clients=clients), after(Method(), clients=clients)) < 1e-14


MUTATIONS = mutations_of(
    "balanced_softmax",
    ("counts for their logarithms", ".to(z_BY.dtype).log()", ".to(z_BY.dtype)"),
    ("inverse counts", "z_BY + ctx", "z_BY - ctx"),
    ("missing classes stay", ".log()", ".clamp(min=1).log()"),
    ("one sample more of each class", ".log()", ".log1p()"),
    ("counts of held classes ignored", "ctx.counts_Y.to", "(ctx.counts_Y > 0).to"),
    ("logits dropped", "z_BY + ctx", "0 * z_BY + ctx"),
)
