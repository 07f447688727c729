"""Golden numbers, invariants and mutations of FedSpeed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.methods.cases import Case, after, parsed, toy_skewed_images
from tests.conformance.problem import (
    SIZES,
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
from tests.toys import largest_difference

CASES = {
    "fedspeed": Case(values=[{"rho": rho, "mu": 0.4 - rho} for rho in (0.1, 0.3, 0.0, 0.2)], sends=(0, 0)),
}


@both_executors
@pytest.mark.parametrize("settings", [{}, {"rho": 0.3, "mu": 0.4, "server_lr": 0.7}], ids=str)
@pytest.mark.parametrize("variant", ["original", "code"])
@pytest.mark.parametrize("participation", [1.0, 2 / 3])
def test_fedspeed(executor: str, settings: dict[str, float], variant: str, participation: float) -> None:
    """With the paper's prox-correction g_k: -lambda g_k is h_k, lambda = 1 / mu."""
    rho, mu = settings.get("rho", 0.1), settings.get("mu", 0.1)
    method = {"name": "fedspeed", **settings, **({"variant": variant} if variant == "code" else {})}
    trainer = trainer_of(method, executor, participation=participation, weight_decay=0.02)
    x, corrections = W0.copy(), np.zeros((len(SIZES), *W0.shape))
    for round in range(4):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        trainer.step()
        start, ends = x, []
        for k in cohort:

            def corrected(
                w: Array,
                pixels: Array,
                labels: Labels,
                start: Array = start,
                own: Array = corrections[k].copy(),  # noqa: B008
            ) -> Array:
                first = gradient(w, pixels, labels)
                there = w + rho * first / (np.linalg.norm(first) if variant == "code" else 1)
                return gradient(there, pixels, labels) + 0.02 * w - own + mu * (w - start)

            end = local_sgd(start, k, round, corrected)
            corrections[k] -= mu * (end - start)
            ends.append(end)
        added = -corrections.mean(axis=0) / mu if variant == "code" else -corrections[cohort].mean(axis=0) / mu
        x = x + settings.get("server_lr", 1.0) * (np.mean(ends, axis=0) + added - x)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.states["head.weight"], -corrections / mu)


def test_without_perturbation_the_code_is_feddyn() -> None:
    images: dict[str, Any] = {"images": toy_skewed_images(), "participation": 2 / 3}
    dyn = after(parsed("feddyn", alpha=0.3, weighting="equal"), **images)
    assert largest_difference(after(parsed("fedspeed", rho=0.0, mu=0.3, variant="code"), **images), dyn) == 0
    assert largest_difference(after(parsed("fedspeed", rho=0.1, mu=0.3, variant="code"), **images), dyn) > 1e-6


_DIRECTION = "(w - x).add_(h).mul_(self.mu).add_(g)"
MUTATIONS = mutations_of(
    "fedspeed",
    ("descent", "w + scale * g", "w - scale * g"),
    ("rho ignored", " else self.rho", " else 0.1"),
    ("code's rho ignored", "self.rho * (1", "0.1 * (1"),
    ("normalized in original", 'if self.variant == "code" else self.rho', "if True else self.rho"),
    ("not normalized", "ctx.norm(g).clamp_min(TINY)", "1"),
    ("no proximal part", _DIRECTION, "g + self.mu * h"),
    ("no correction", _DIRECTION, "g + self.mu * (w - x)"),
    ("correction's sign", _DIRECTION, "g + self.mu * (w - x - h)"),
    ("no gradient", _DIRECTION, "self.mu * (w - x + h)"),
    ("mu ignored", "mul_(self.mu)", "mul_(0.1)"),
    ("h_k's sign", "h + (w - x), ctx", "h - (w - x), ctx"),
    ("h_k forgets", "h + (w - x), ctx", "w - x, ctx"),
    ("h_k before the round", "return h, h if", "return h, ctx.client if"),
    ("changes weighed by samples", "[1 / len(cohort.share)] * len(cohort.share)", "cohort.share"),
    ("h by the mean of the cohort", "h + ctx.participation * d", "h + d"),
    ("h forgets", "h + ctx.participation * d", "ctx.participation * d"),
    ("h not added", "self.server_lr * (d + h)", "self.server_lr * d"),
    ("server learning rate for the changes only", "self.server_lr * (d + h)", "self.server_lr * d + h"),
    ("rho by default", "Field(ge=0)] = 0.1", "Field(ge=0)] = 0.05"),
    ("mu by default", "Field(gt=0)] = 0.1", "Field(gt=0)] = 0.01"),
    ("code by default", '= "original"\n', '= "code"\n'),
)
