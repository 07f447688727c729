"""Golden numbers, invariants and mutations of FedDC."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.methods.cases import Case, parsed, values
from tests.conformance.problem import (
    LR,
    SIZES,
    STEPS,
    UNEQUAL,
    W0,
    Array,
    Labels,
    assert_close,
    both_executors,
    gradient,
    local_sgd,
    trainer_of,
)
from tests.mutation.mutations import mutations_of
from tests.toys import toy_trainer

CASES = {"feddc": Case(values=values("alpha", 0.1, 0.01, 0.3, 0.05), sends=(0, 1))}


@both_executors
@pytest.mark.parametrize(
    "settings", [{}, {"alpha": 0.4, "server_lr": 0.7}, {"alpha": 0.4, "weighting": "equal"}], ids=str
)
@pytest.mark.parametrize(("participation", "steps"), [(1.0, (STEPS,) * 3), (2 / 3, UNEQUAL)])
def test_feddc(executor: str, settings: dict[str, Any], participation: float, steps: tuple[int, ...]) -> None:
    """Drifts and controls apart, as in the authors' code: flbench keeps alpha_k h_k - c_k."""
    relative = np.ones(3) if settings.get("weighting") == "equal" else np.array(SIZES) / np.mean(SIZES)
    alpha = settings.get("alpha", 0.1) / relative
    trainer = trainer_of({"name": "feddc", **settings}, executor, participation=participation, steps=steps)
    x, c, drifts, controls = W0.copy(), 0 * W0, np.zeros((3, *W0.shape)), np.zeros((3, *W0.shape))
    for round in range(4):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        trainer.step()
        start, ends, moved = x, [], 0 * W0
        for k in cohort:
            last, shared = controls[k].copy(), c / relative[k]

            def drifting(
                weights: Array,
                pixels: Array,
                labels: Labels,
                k: int = k,
                start: Array = start,
                drift: Array = drifts[k].copy(),  # noqa: B008
                correction: Array = shared - last,
            ) -> Array:
                towards = weights - (start - drift)
                return gradient(weights, pixels, labels) + alpha[k] * towards + correction

            end = local_sgd(start, k, round, drifting, steps=steps[k])
            ends.append(end)
            drifts[k] += end - start
            controls[k] = last - shared - (end - start) / (steps[k] * LR)
            moved = moved + (controls[k] - last) * relative[k]
        c = c + moved / 3
        x = x + settings.get("server_lr", 1.0) * (np.mean(ends, axis=0) + drifts.mean(axis=0) - x)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["c/head.weight"], c)
    assert_close(trainer.server["h/head.weight"], drifts.mean(axis=0))
    assert_close(trainer.states["head.weight"], alpha[:, None, None] * drifts - controls)


def test_c_is_the_mean_of_all_controls() -> None:
    """The server's h and c are the means of what clients keep, with any participation."""
    trainer = toy_trainer(parsed("feddc", alpha=0.3, weighting="equal"), participation=2 / 3)
    for _ in range(4):
        trainer.step()
        for name, own in trainer.states.items():
            apart = 0.3 * trainer.server[f"h/{name}"] - trainer.server[f"c/{name}"] - own.mean(0)
            assert float(apart.abs().max()) < 1e-12
    assert max(float(leaf.abs().max()) for leaf in trainer.server.values()) > 1e-3


_DIRECTION = "own.addcmul(w - x, alpha).addcdiv_(c, size).add_(g)"
_OWN = "own.addcmul(d, alpha, value=-1).sub_(c)"
_CHANGE = "(d / ctx.steps).div_(ctx.lr).addcdiv_(c, size, value=-1)"
MUTATIONS = mutations_of(
    "feddc",
    ("no proximal part", _DIRECTION, "own + c / size + g"),
    ("proximal part's sign", _DIRECTION, "own.addcmul(x - w, alpha).addcdiv_(c, size).add_(g)"),
    ("no state", _DIRECTION, "(w - x).mul_(alpha).addcdiv_(c, size).add_(g)"),
    ("state's sign", _DIRECTION, "(w - x).mul_(alpha).sub_(own).addcdiv_(c, size).add_(g)"),
    ("no c", _DIRECTION, "(w - x).mul_(alpha).add_(own).add_(g)"),
    ("c's sign", _DIRECTION, "own.addcmul(w - x, alpha).sub_(c / size).add_(g)"),
    ("c not scaled", _DIRECTION, "(w - x).mul_(alpha).add_(own).add_(c).add_(g)"),
    ("no gradient", _DIRECTION, "(w - x).mul_(alpha).add_(own).add_(c / size)"),
    ("no drift", _OWN, "own - c"),
    ("drift's sign", _OWN, "own + alpha * d - c"),
    ("control's sign", _OWN, "own - alpha * d + c"),
    ("state forgets", _OWN, "-alpha * d - c"),
    ("no control", _OWN, "own - alpha * d"),
    ("the paper's control", _CHANGE, "d / ctx.steps / ctx.lr"),
    ("control's step backwards", _CHANGE, "-d / ctx.steps / ctx.lr - c / size"),
    ("not divided by steps", _CHANGE, "d / ctx.lr - c / size"),
    ("not divided by lr", _CHANGE, "d / ctx.steps - c / size"),
    ("c in the control not scaled", _CHANGE, "d / ctx.steps / ctx.lr - c"),
    ("messages not scaled", "lambda c: c * size", "lambda c: c"),
    ("alpha not scaled", "self.alpha * (1 / size), size", "self.alpha, size"),
    ("alpha times the samples", "self.alpha * (1 / size)", "self.alpha * size"),
    ("weightings swapped", 'if self.weighting == "samples"', 'if self.weighting != "samples"'),
    ("equal by default", '= "samples"\n', '= "equal"\n'),
    ("alpha by default", "Field(gt=0)] = 0.1", "Field(gt=0)] = 0.01"),
    ("changes weighed by samples", "[1 / len(cohort.share)] * len(cohort.share)", "cohort.share"),
    ("h by the mean of the cohort", "ctx.participation * d for", "d for"),
    ("c by the mean of the cohort", "ctx.participation * change for", "change for"),
    ("h forgets", 'state[f"h/{name}"] + ctx', "ctx"),
    ("c forgets", 'state[f"c/{name}"] + ctx', "ctx"),
    ("h not added", "self.server_lr * (d + h)", "self.server_lr * d"),
    ("server learning rate for the changes only", "self.server_lr * (d + h)", "self.server_lr * d + h"),
    ("h broadcast in place of c", 'state[f"c/{name}"] for name in x', 'state[f"h/{name}"] for name in x'),
)
