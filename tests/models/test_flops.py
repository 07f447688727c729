"""Floating-point operations are counted by torch's formulas, without torch's compiler, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flbench.config import parse_experiment
from flbench.engine.setup import make_network
from flbench.models.flops import sample_flops
from flbench.registry import MODELS
from tests.engine.test_budgets import random_data
from tests.start_up import heavy_imports

IMAGE = (3, 32, 32)


def by_torch(network: torch.nn.Module, *, backward: bool) -> float:
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(backward):
        logits = network.eval()(torch.zeros(2, *IMAGE))[1]
        if backward:
            logits.sum().backward()
    return counter.get_total_flops() / 2


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS.classes)
def test_they_are_those_of_torchs_own_counter(model: str) -> None:
    network = make_network(
        parse_experiment({"dataset": "cifar10", "model": model}), random_data(IMAGE, 10, train=10), "cpu"
    )
    for backward in (False, True):
        assert sample_flops(network, IMAGE, backward=backward) == by_torch(network, backward=backward) > 0


@pytest.mark.slow
def test_training_imports_no_compiler(tmp_path: Path) -> None:
    program = f"import flbench; flbench.run(rounds=1, E=1, store={str(tmp_path)!r})"
    imported, _ = heavy_imports(program, ("torch", "torch._dynamo", "torch._inductor", "sympy"))
    assert imported == ["torch"]
