"""Golden numbers, invariants and mutations of FedLESAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.methods.cases import Case, parsed, values
from tests.conformance.problem import (
    H0,
    LR,
    SIZES,
    V0,
    Array,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trainer_of,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_trainer

CASES = {"fedlesam": Case([{"rho": 0.0}], values("rho", 0.1, 0.3, 0.0, 0.05))}

Pair = tuple[Array, Array]


def step(at: Pair, there: Pair, pixels: Array, labels: Any) -> Pair:
    """Return V and H after a step along the gradient elsewhere, with weight decay at the weights themselves."""
    v, h = there
    error = softmax_error(pixels @ v.T @ h.T, labels)
    gradients = (error @ h).T @ pixels, error.T @ (pixels @ v.T)
    return at[0] - LR * (gradients[0] + 0.02 * at[0]), at[1] - LR * (gradients[1] + 0.02 * at[1])


@both_executors
@pytest.mark.parametrize("settings", [{}, {"rho": 0.4, "server_lr": 0.7}], ids=str)
@pytest.mark.parametrize("variant", ["original", "code"])
def test_fedlesam(executor: str, settings: dict[str, float], variant: str) -> None:
    """Two of three clients a round: a client's last x is older than the round before."""
    rho, server_lr = settings.get("rho", 0.1), settings.get("server_lr", 1.0)
    trainer = trainer_of(
        {"name": "fedlesam", **settings, **({"variant": variant} if variant == "code" else {})},
        executor,
        **{"network": TwoLayers(), "participation": 2 / 3, "weight_decay": 0.02},
    )
    x, moved, received = (V0.copy(), H0.copy()), (0 * V0, 0 * H0), [(V0.copy(), H0.copy()) for _ in SIZES]
    for round in range(5):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        trainer.step()
        ends = []
        for k in cohort:
            if variant == "code":
                d = (-moved[0], -moved[1])
                length = np.linalg.norm(d[0]) + np.linalg.norm(d[1])
            else:
                d = (received[k][0] - x[0], received[k][1] - x[1])
                length = np.hypot(np.linalg.norm(d[0]), np.linalg.norm(d[1]))
            shift = [rho * leaf / length if length else leaf for leaf in d]
            w: Pair = x
            for pixels, labels in batches(k, round):
                w = step(w, (w[0] + shift[0], w[1] + shift[1]), pixels, labels)
            ends.append(w)
            received[k] = x
        share = np.array(SIZES)[cohort] / np.array(SIZES)[cohort].sum()
        moved = tuple(server_lr * (mean(share, leaves) - x[i]) for i, leaves in enumerate(zip(*ends, strict=True)))  # type: ignore[assignment]
        x = x[0] + moved[0], x[1] + moved[1]
    assert_close(trainer.x["hidden.weight"], x[0])
    assert_close(trainer.x["head.weight"], x[1])
    if variant == "original":
        assert_close(trainer.states["head.weight"], np.stack([each[1] for each in received]))


def test_the_first_round_does_not_perturb() -> None:
    for variant in ("original", "code"):
        found, plain = toy_trainer(parsed("fedlesam", variant=variant)), toy_trainer(parsed("fedavg"))
        for same in (True, False):
            found.step()
            plain.step()
            assert (largest_difference(found.x, plain.x) == 0) == same


MUTATIONS = mutations_of(
    "fedlesam",
    ("along the change", "before - x, ctx.client", "x - before, ctx.client"),
    ("along the step", "a - b, x, after", "b - a, x, after"),
    ("perturbed from the start", "(d, scale), w, towards", "(d, scale), ctx.x, towards"),
    ("not normalized", "norm = ctx.norm(towards)", "norm = ctx.norm(w)"),
    ("code's norm over all leaves", "sum(norms[1:], norms[0])", "ctx.norm(towards)"),
    ("code's largest leaf", "sum(norms[1:], norms[0])", "norms[0]"),
    ("rho ignored", "self.rho * (1", "0.1 * (1"),
    ("a large bound of the norm", "clamp_min(TINY)", "clamp_min(1.0)"),
    ("keeps the last weights", "x.expand_as(w), ctx.x, w", "w, ctx.x, w"),
    ("never keeps", "tmap(lambda x, w: x.expand_as(w), ctx.x, w), {}", "ctx.client, {}"),
    ("code starts at x", "lambda a: 0 * a, x", "lambda a: a, x"),
    ("no server step", "after, _ = super().server_step(x, delta, message, state, ctx)", "after = x"),
    ("rho by default", "Field(ge=0)] = 0.1", "Field(ge=0)] = 0.05"),
    ("code by default", '= "original"\n', '= "code"\n'),
)
