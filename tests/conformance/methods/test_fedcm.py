"""Golden numbers, invariants and mutations of FedCM."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.methods.base import tmap
from tests.conformance.methods.cases import Case, parsed, values
from tests.conformance.problem import (
    LR,
    ROUNDS,
    SHARE,
    STEPS,
    UNEQUAL,
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
from tests.toys import largest_difference, toy_trainer

CASES = {"fedcm": Case([{"alpha": 1.0}], values("alpha", 0.1, 0.7, 1.0, 0.3))}


@both_executors
@pytest.mark.parametrize("settings", [{}, {"alpha": 0.6, "server_lr": 0.7}])
@pytest.mark.parametrize("steps", [(STEPS,) * 3, UNEQUAL])
def test_fedcm(executor: str, settings: dict[str, float], steps: tuple[int, ...]) -> None:
    alpha, server_lr = settings.get("alpha", 0.1), settings.get("server_lr", 1.0)
    x, moving = W0.copy(), np.zeros_like(W0)
    for round in range(ROUNDS):

        def mixed(weights: Array, pixels: Array, labels: Labels, moving: Array = moving) -> Array:
            return alpha * gradient(weights, pixels, labels) + (1 - alpha) * moving

        ends = [local_sgd(x, k, round, mixed, steps=steps[k]) for k in range(3)]
        moving = mean(SHARE, [(x - ends[k]) / (LR * steps[k]) for k in range(3)])
        x = x + server_lr * (mean(SHARE, ends) - x)
    trainer = trained({"name": "fedcm", **settings}, executor, steps=steps)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], moving)


def test_fedcms_direction_is_the_mean_step_of_a_round() -> None:
    """Without momentum, and with equal steps, D is -delta / (K lr)."""
    trainer = toy_trainer(parsed("fedcm"))
    for _ in range(3):
        before = {name: leaf.clone() for name, leaf in trainer.x.items()}
        trainer.step()
        moved = tmap(lambda a, b: (a - b) / (4 * 0.1), before, trainer.x)
        assert largest_difference(moved, trainer.server) < 1e-13


_MIXED = "self.alpha * g + (d - self.alpha * d)"
MUTATIONS = mutations_of(
    "fedcm",
    ("weights swapped", _MIXED, "(1 - self.alpha) * g + self.alpha * d"),
    ("sign of D", _MIXED, "self.alpha * g - (1 - self.alpha) * d"),
    ("gradient in full", _MIXED, "g + (1 - self.alpha) * d"),
    ("D in full", _MIXED, "self.alpha * g + d"),
    ("no D", _MIXED, "self.alpha * g"),
    ("step's sign", "(x - w) / ctx.steps", "(w - x) / ctx.steps"),
    ("not divided by steps", " / ctx.steps", ""),
    ("not divided by lr", " / ctx.lr", ""),
    ("multiplied by lr", "/ ctx.lr", "* ctx.lr"),
    ("D weighs clients equally", "        return cohort.share\n", "        return super().message_weights(cohort)\n"),
    ("D is a running sum", "[0], message", "[0], tmap(lambda a, b: a + b, state, message)"),
    ("D never moves", "[0], message", "[0], state"),
    (
        "server's step dropped",
        "return super().server_step(x, delta, message, state, ctx)[0], message",
        "return x, message",
    ),
    ("alpha by default", "= 0.1", "= 0.9"),
    ("D starts at x", "lambda a: 0 * a", "lambda a: a"),
    ("clients start at D", "        return x, state\n", "        return state, state\n"),
)
