"""Golden numbers, invariants and mutations of FedGamma."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.methods.cases import Case, after, parsed, toy_skewed_images, values
from tests.conformance.problem import (
    EQUAL,
    LR,
    ROUNDS,
    SHARE,
    STEPS,
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
from tests.toys import largest_difference

CASES = {"fedgamma": Case(values=values("rho", 0.01, 0.3, 0.0, 0.1), sends=(0, 1))}


@both_executors
@pytest.mark.parametrize("settings", [{}, {"rho": 0.3}, {"rho": 0.3, "variant": "text"}], ids=str)
def test_fedgamma(executor: str, settings: dict[str, float | str]) -> None:
    """SCAFFOLD's correction is added to the gradient at the perturbed weights, and does not perturb."""
    rho, share = float(settings.get("rho", 0.01)), SHARE if "variant" in settings else EQUAL
    x, c, own = W0.copy(), 0 * W0, [0 * W0 for _ in range(3)]
    for round in range(ROUNDS):
        ends = []
        for k in range(3):

            def sharp(w: Array, pixels: Array, labels: Labels, correction: Array = c - own[k]) -> Array:
                g = gradient(w, pixels, labels)
                return gradient(w + rho * g / np.linalg.norm(g), pixels, labels) + correction

            ends.append(local_sgd(x, k, round, sharp))
        new = [own[k] - c + (x - ends[k]) / (STEPS * LR) for k in range(3)]
        c, own, x = c + mean(EQUAL, [a - b for a, b in zip(new, own, strict=True)]), new, mean(share, ends)
    trainer = trained({"name": "fedgamma", **settings}, executor)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)


def test_without_perturbation_fedgamma_is_scaffold() -> None:
    images = toy_skewed_images()
    for variant in ("original", "code", "niid-bench"):
        scaffold = after(parsed("scaffold", variant=variant), images=images)
        assert largest_difference(after(parsed("fedgamma", variant=variant, rho=0.0), images=images), scaffold) == 0


MUTATIONS = mutations_of(
    "fedgamma",
    ("without FedSAM", "class FedGamma(FedSAM, Scaffold)", "class FedGamma(Scaffold)"),
    ("without SCAFFOLD", "class FedGamma(FedSAM, Scaffold)", "class FedGamma(FedSAM)"),
    ("rho by default", "Field(ge=0)] = 0.01", "Field(ge=0)] = 0.05"),
)
