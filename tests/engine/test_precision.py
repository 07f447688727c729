"""Mixed precision: products in bfloat16, weights and everything that adds up in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

import pytest
import torch
from torch import Tensor, nn

from flbench.config import parse_experiment
from flbench.config.training import Precision
from flbench.data.datasets import load
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_trainer
from flbench.methods.base import Batch, Context, Tree
from flbench.methods.feddecorr import FedDecorr
from flbench.models import norm_layers
from flbench.models.network import pure_forward
from tests.toys import largest_difference, train, train_together

NORMS = ["none", "fn", "ln", "gn", "bn"]


def trainer(precision: str, executor: str, **fields: Any) -> FederatedTrainer:
    model = {"name": "mlp", "widths": [32]}
    given = {
        "model": model,
        "clients": 4,
        "E": 3,
        "partition": "classes:3",
        "lr": 0.05,
        "precision": precision,
        **fields,
    }
    experiment = parse_experiment(given)
    made = make_trainer(experiment, load(experiment.dataset), device="cpu", executor=executor, pool=1)[0]  # type: ignore[arg-type]
    return cast(FederatedTrainer, made)


def update(trained: FederatedTrainer) -> Tree:
    """How far one round moves the server's parameters."""
    before = {name: leaf.clone() for name, leaf in trained.x.items()}
    trained.step()
    assert all(leaf.dtype == torch.float32 for leaf in trained.x.values()), "the weights themselves are not rounded"
    return {name: leaf - before[name] for name, leaf in trained.x.items()}


def length(tree: Tree) -> float:
    return float(torch.cat([leaf.flatten() for leaf in tree.values()]).norm())


def relative_difference(a: Tree, b: Tree) -> float:
    return length({name: a[name] - b[name] for name in a}) / length(b)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_round_in_bf16_is_nearly_a_round_in_fp32(executor: str, norm: str) -> None:
    exact, rounded = (update(trainer(precision, executor, norm=norm)) for precision in ("fp32", "bf16"))
    # bfloat16 has 8 bits: one product is off by 0.4 %, and three steps of a few products by a few times as much.
    assert 1e-4 < relative_difference(rounded, exact) < 0.05


@pytest.mark.parametrize("norm", NORMS)
def test_both_executors_round_alike(norm: str) -> None:
    loop, stacked = (update(trainer("bf16", executor, norm=norm)) for executor in ("loop", "stacked"))
    assert relative_difference(stacked, loop) < 0.05


@pytest.mark.parametrize("norm", ["none", "ln"])
def test_runs_trained_together_in_bf16_are_those_alone(norm: str) -> None:
    alone, together = ([trainer("bf16", "stacked", norm=norm, seed=seed) for seed in range(3)] for _ in range(2))
    train_together(2, together)
    train(2, *alone)
    for one, other in zip(alone, together, strict=True):
        assert largest_difference(one.x, other.x) == 0


#: Each layer that takes statistics, at activations of shape (C, H, W) or (D,).
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "scale": (lambda: norm_layers.ScaleNorm((6, 4, 4), 1e-5), (6, 4, 4)),
    "shift": (lambda: norm_layers.MeanShift((6, 4, 4)), (6, 4, 4)),
    "rms": (lambda: norm_layers.RmsNorm((6, 4, 4), 1e-5), (6, 4, 4)),
    "ln": (lambda: norm_layers.LayerNorm((6, 4, 4), 1e-5), (6, 4, 4)),
    "gn": (lambda: norm_layers.GroupNorm(2, (6, 4, 4), 1e-5), (6, 4, 4)),
    "in": (lambda: norm_layers.GroupNorm(6, (6, 4, 4), 1e-5), (6, 4, 4)),
    "bn": (lambda: norm_layers.BatchNorm(6, 1e-5), (6, 4, 4)),
    "bn of features": (lambda: norm_layers.BatchNorm(40, 1e-5), (40,)),
    "bn-static": (lambda: norm_layers.BatchNorm(6, 1e-5, affine=False), (6, 4, 4)),
    "mean-last": (lambda: norm_layers.BatchShift(40), (40,)),
}


@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_statistics_are_those_of_float32(layer: str, clients: int | None) -> None:
    """Around a mean of 100, numbers of 8 bits are half a unit apart: statistics rounded to them are far off."""
    build, shape = LAYERS[layer]
    stacked = () if clients is None else (clients,)
    module = build()
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()  # type: ignore[operator]
    forward = pure_forward(module)  # type: ignore[type-var]
    leaves = {name: leaf.detach().expand(*stacked, *leaf.shape) for name, leaf in module.named_parameters()}
    x = (100 + torch.randn(*stacked, 9, *shape, generator=torch.Generator().manual_seed(0))).bfloat16()

    def call(x: Tensor, *, mixed: bool) -> tuple[Any, Tree]:
        buffers = {name: leaf.expand(*stacked, *leaf.shape).clone() for name, leaf in module.named_buffers()}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return forward(leaves, buffers, x), buffers

    (expected, exact), (found, statistics) = call(x.float(), mixed=False), call(x, mixed=True)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.bfloat16())
    assert {name: leaf.dtype for name, leaf in statistics.items()} == dict.fromkeys(exact, torch.float32)
    assert all(torch.equal(leaf, exact[name]) for name, leaf in statistics.items())


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_penalty_is_computed_in_float32(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, penalty = set(), FedDecorr.penalty

    def note(self: FedDecorr, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        out = penalty(self, w, batch, ctx)
        seen.add((batch.features_BD.dtype, torch.as_tensor(out).dtype))
        return out

    monkeypatch.setattr(FedDecorr, "penalty", note)
    trainer("bf16", executor, method="feddecorr", norm="bn").step()
    assert seen == {(torch.float32, torch.float32)}


def test_only_the_ids_of_mixed_precision_have_changed() -> None:
    """Version 2 of bf16: its statistics and penalties used to be rounded to it."""
    identities = {precision: parse_experiment({"precision": precision}).identity() for precision in get_args(Precision)}
    assert {precision: identity.get("precision") for precision, identity in identities.items()} == {
        "fp32": None,
        "tf32": "tf32",
        "fp64": "fp64",
        "bf16": {"name": "bf16", "version": 2},
    }
