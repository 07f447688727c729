"""Golden numbers, invariants and mutations of FedRS."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, toy_skewed_images, values
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
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import toy_clients, toy_trainer

CASES = {"fedrs": Case([{"alpha": 1.0}], values("alpha", 0.5, 0.9, 0.1, 0.5))}


@both_executors
@pytest.mark.parametrize("alpha", [None, 0.2])
def test_fedrs(executor: str, alpha: float | None) -> None:
    def restricted(counts: Labels) -> Gradient:
        scale = np.where(counts == 0, 0.5 if alpha is None else alpha, 1.0)

        def of(weights: Array, pixels: Array, labels: Labels) -> Array:
            return np.asarray((scale * softmax_error(scale * (pixels @ weights.T), labels)).T @ pixels)

        return of

    x = W0.copy()
    for round in range(ROUNDS):
        x = mean(SHARE, [local_sgd(x, client, round, restricted(COUNTS[client])) for client in range(3)])
    settings = {} if alpha is None else {"alpha": alpha}
    assert_close(trained({"name": "fedrs", **settings}, executor).x["head.weight"], x)


def test_fedrs_scales_the_gradient_of_missing_classes() -> None:
    """The gradient of a missing class's row is alpha times that of the softmax, so alpha = 0 keeps the row."""
    images, alone = toy_skewed_images(), toy_clients((20,))
    moved = []
    for alpha in (0.0, 0.5, 1.0):
        method = METHODS.parse({"name": "fedrs", "alpha": alpha})
        trainer = toy_trainer(method, images=images, clients=alone, steps=1)
        before = trainer.x["head.weight"].clone()
        trainer.step()
        moved.append(float((trainer.x["head.weight"] - before)[2].abs().sum()))
    assert moved[0] == 0 < moved[1] < moved[2]


MUTATIONS = mutations_of(
    "fedrs",
    ("held and missing swapped", "held_Y + self.alpha * (1 - held_Y)", "(1 - held_Y) + self.alpha * held_Y"),
    ("missing logits at 0", "held_Y + self.alpha * (1 - held_Y)", "held_Y"),
    ("sign of alpha", "held_Y + self.alpha", "held_Y - self.alpha"),
    ("added for multiplied", "z_BY * (", "z_BY + ("),
    ("one sample is none", "(ctx.counts_Y > 0)", "(ctx.counts_Y > 1)"),
    ("off, as the published default", "= 0.5", "= 1.0"),
    ("alpha squared", "self.alpha * (1 - held_Y)", "self.alpha**2 * (1 - held_Y)"),
)
