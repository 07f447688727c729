"""Mixed precision: products in bfloat16, weights and everything that adds up in float32."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine.fused import step_together
from flbench.engine.rounds import FederatedTrainer
from flbench.engine.setup import make_trainer
from flbench.methods.base import Tree
from tests.toys import largest_difference

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
    for _ in range(2):
        for one in alone:
            one.step()
        step_together(together, [False] * 3)
    for one, other in zip(alone, together, strict=True):
        assert largest_difference(one.x, other.x) == 0
