"""Golden numbers, invariants and mutations of FedSAM and MoFedSAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flbench.methods.base import Context, ServerContext, Tree, tmap
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, after, context_of, parsed, toy_skewed_images, values
from tests.conformance.problem import (
    H0,
    LR,
    ROUNDS,
    SHARE,
    STEPS,
    V0,
    W0,
    Array,
    Labels,
    SoftmaxRegression,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients, toy_trainer

CASES = {
    "fedsam": Case([{"rho": 0.0}], values("rho", 0.05, 0.3, 0.0, 0.1)),
    "mofedsam": Case([{"rho": 0.0, "alpha": 1.0}], [{"rho": rho, "alpha": 1 - rho} for rho in (0.05, 0.3, 0.0, 0.1)]),
}


Pair = tuple[Array, Array]


def two_gradients(v: Array, h: Array, pixels: Array, labels: Labels) -> Pair:
    """Return dL/dV and dL/dH of the logits H V p."""
    error = softmax_error(pixels @ v.T @ h.T, labels)
    return (error @ h).T @ pixels, error.T @ (pixels @ v.T)


def sharp_gradients(v: Array, h: Array, pixels: Array, labels: Labels, rho: float) -> Pair:
    """Return the gradients at the ascent point: both leaves move along one unit vector."""
    dv, dh = two_gradients(v, h, pixels, labels)
    length = np.linalg.norm(np.concatenate([dv.ravel(), dh.ravel()]))
    return two_gradients(v + rho * dv / length, h + rho * dh / length, pixels, labels)


def two_layer_rounds(of: Callable[[Array, Array, Array, Labels, Pair], Pair]) -> Pair:
    """Return V and H after all rounds; ``of`` also sees the mean step of the last round."""
    hidden, head, moving = V0.copy(), H0.copy(), (np.zeros_like(V0), np.zeros_like(H0))
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden, head
            for pixels, labels in batches(client, round):
                dv, dh = of(v, h, pixels, labels, moving)
                v, h = v - LR * dv, h - LR * dh
            ends.append((v, h))
        after = mean(SHARE, [v for v, _ in ends]), mean(SHARE, [h for _, h in ends])
        moving = (hidden - after[0]) / (LR * STEPS), (head - after[1]) / (LR * STEPS)
        hidden, head = after
    return hidden, head


@both_executors
@pytest.mark.parametrize("rho", [None, 0.3])
def test_fedsam(executor: str, rho: float | None) -> None:
    """Weight decay pulls the weights themselves, and does not perturb them."""

    def sharp(v: Array, h: Array, pixels: Array, labels: Labels, _: Pair) -> Pair:
        dv, dh = sharp_gradients(v, h, pixels, labels, 0.05 if rho is None else rho)
        return dv + 0.02 * v, dh + 0.02 * h

    hidden, head = two_layer_rounds(sharp)
    settings = {} if rho is None else {"rho": rho}
    trainer = trained({"name": "fedsam", **settings}, executor, network=TwoLayers(), weight_decay=0.02)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)


@both_executors
@pytest.mark.parametrize("settings", [{}, {"rho": 0.3, "alpha": 0.4}])
def test_mofedsam(executor: str, settings: dict[str, float]) -> None:
    rho, alpha = settings.get("rho", 0.05), settings.get("alpha", 0.1)

    def mixed(v: Array, h: Array, pixels: Array, labels: Labels, moving: Pair) -> Pair:
        dv, dh = sharp_gradients(v, h, pixels, labels, rho)
        return alpha * dv + (1 - alpha) * moving[0], alpha * dh + (1 - alpha) * moving[1]

    hidden, head = two_layer_rounds(mixed)
    trainer = trained({"name": "mofedsam", **settings}, executor, network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)


def normed_gradients(
    scale: Array, shift: Array, weights: Array, pixels: Array, labels: Labels
) -> tuple[Array, Array, Array]:
    """Return the gradients of a batch-normalized softmax regression."""
    unit = (pixels - pixels.mean(axis=0)) / np.sqrt(pixels.var(axis=0) + 1e-5)
    error = softmax_error((unit * scale + shift) @ weights.T, labels)
    back = error @ weights
    return (back * unit).sum(axis=0), back.sum(axis=0), error.T @ (unit * scale + shift)


@both_executors
def test_fedsam_moves_batch_statistics_once(executor: str) -> None:
    rho = 0.3
    leaves, centre, spread = [np.ones(2), np.zeros(2), W0.copy()], np.zeros(2), np.ones(2)
    for round in range(ROUNDS):
        ends: list[Any] = []
        for client in range(3):
            own, running = leaves, (centre, spread)
            for pixels, labels in batches(client, round):
                first = normed_gradients(*own, pixels, labels)
                length = np.sqrt(sum((leaf**2).sum() for leaf in first))
                there = [leaf + rho * g / length for leaf, g in zip(own, first, strict=True)]
                second = normed_gradients(*there, pixels, labels)
                own = [leaf - LR * g for leaf, g in zip(own, second, strict=True)]
                moved = pixels.mean(axis=0), pixels.var(axis=0, ddof=1)
                running = 0.9 * running[0] + 0.1 * moved[0], 0.9 * running[1] + 0.1 * moved[1]
            ends.append((*own, *running))
        *leaves, centre, spread = (mean(SHARE, parts) for parts in zip(*ends, strict=True))
    trainer = trained({"name": "fedsam", "rho": rho}, executor, network=SoftmaxRegression(batch_norm=True))
    for name, expected in zip(("norm.weight", "norm.bias", "head.weight"), leaves, strict=True):
        assert_close(trainer.x[name], expected)
    assert_close(trainer.buffers["norm.running_mean"], centre)
    assert_close(trainer.buffers["norm.running_var"], spread)


def test_mofedsam_joins_fedcm_and_fedsam() -> None:
    images = toy_skewed_images()
    both, cm, sam = (
        after(parsed("mofedsam", **settings), images=images)
        for settings in ({}, {"rho": 0.0}, {"alpha": 1.0, "rho": 0.05})
    )
    assert largest_difference(cm, after(parsed("fedcm"), images=images)) == 0
    assert largest_difference(sam, after(parsed("fedsam"), images=images)) == 0
    assert min(largest_difference(both, cm), largest_difference(both, sam)) > 1e-6


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e3])
def test_fedsam_perturbs_by_rho_over_all_leaves(scale: float) -> None:
    w = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.randn(5, dtype=torch.float64)}
    g = {name: scale * torch.randn_like(leaf) for name, leaf in w.items()}
    moved = tmap(lambda after, before: after - before, parsed("fedsam", rho=0.3).perturbed(w, g, context_of({})), w)
    length = sum(float((leaf**2).sum()) for leaf in moved.values()) ** 0.5
    assert length == pytest.approx(0.3, rel=1e-12)
    assert float((moved["a"] / g["a"]).std()) < 1e-6 / scale  # along the gradient
    assert min(float(leaf.norm()) for leaf in moved.values()) < 0.3


def test_fedsam_does_not_move_without_a_gradient() -> None:
    w = {"a": torch.ones(3)}
    assert torch.equal(parsed("fedsam").perturbed(w, tmap(torch.zeros_like, w), context_of({}))["a"], w["a"])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_fedsam_has_one_norm_for_each_client(executor: str) -> None:
    """A client's weights do not depend on the other clients that are trained with it."""
    together = toy_trainer(parsed("fedsam", rho=0.3), clients=toy_clients((20, 20, 20)), executor=executor)
    alone = toy_trainer(parsed("fedsam", rho=0.3), clients=toy_clients((20,)), executor=executor)
    seen: list[Tree] = []

    class Recording(METHODS["fedsam"]):  # type: ignore[misc]
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            return ctx.client, w

        def server_step(
            self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext
        ) -> tuple[Tree, Tree]:
            seen.append({name: leaf.clone() for name, leaf in message.items()})
            return super().server_step(x, delta, message, state, ctx)

        def message_weights(self, cohort: Any) -> Any:
            return [1.0] + [0.0] * (len(cohort.share) - 1)

    for clients in ((20, 20, 20), (20,)):
        toy_trainer(Recording(rho=0.3), clients=toy_clients(clients), executor=executor).step()
    assert largest_difference(seen[0], seen[1]) < 1e-14
    together.step()
    alone.step()
    assert largest_difference(together.x, alone.x) > 1e-4


_ASCENT = "w + scale * g"
MUTATIONS = mutations_of(
    "fedsam",
    ("descent", _ASCENT, "w - scale * g"),
    ("not normalized", _ASCENT, "w + self.rho * g"),
    ("squared norm", "ctx.norm(g)", "(ctx.norm(g) ** 2)"),
    ("norm of the weights", "ctx.norm(g)", "ctx.norm(w)"),
    ("one norm for each leaf", _ASCENT, 'w + self.rho / ctx.norm({"": g}) * g'),
    ("rho ignored", "self.rho * (1", "0.05 * (1"),
    ("rho by default", "Field(ge=0)] = 0.05", "Field(ge=0)] = 0.5"),
    ("perturbed from the start", "scale * g, w, g)", "scale * g, ctx.x, g)"),
    ("no bound of the norm", ".clamp_min(TINY)", ""),
    ("a large bound of the norm", "TINY = 1e-12", "TINY = 1e-3"),
    ("MoFedSAM without FedSAM", "class MoFedSAM(FedSAM, FedCM)", "class MoFedSAM(FedCM)"),
    ("MoFedSAM without FedCM", "class MoFedSAM(FedSAM, FedCM)", "class MoFedSAM(FedSAM)"),
)
