"""Checks on an NVIDIA GPU; skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine.rounds import Trainer
from flbench.engine.setup import make_trainer
from tests.toys import largest_difference

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]


def trainer(device: str, **fields: Any) -> Trainer:
    experiment = parse_experiment({"E": 3, "partition": "classes:2", "precision": "fp64", **fields})
    return make_trainer(experiment, load(experiment.dataset), device=device, executor="auto", pool=1)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["none", "fn", "ln", "gn", "bn"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedyogi", "fedbn"])
def test_cuda_computes_what_the_cpu_computes(method: str, norm: str) -> None:
    on_cpu, on_gpu = (trainer(device, method=method, norm=norm) for device in ("cpu", "cuda"))
    for _ in range(3):
        on_cpu.step()
        on_gpu.step()
    assert largest_difference(on_cpu.x, {name: leaf.cpu() for name, leaf in on_gpu.x.items()}) < 1e-9
    records = [
        {k: v for k, v in t.evaluate().items() if k not in ("seconds", "loss", "train_loss")} for t in (on_cpu, on_gpu)
    ]
    assert records[0] == records[1]


def test_a_checkpoint_moves_to_the_gpu() -> None:
    source, target = trainer("cpu", method="scaffold"), trainer("cuda", method="scaffold")
    source.step()
    target.load(source.state())
    assert all(leaf.is_cuda for leaf in target.x.values())
    target.step()
    assert target.round == 2
