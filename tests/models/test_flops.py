"""Floating-point operations are counted by torch's formulas, without torch's compiler, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flbench.models.flops import sample_flops
from flbench.models.initial_weights import build
from flbench.registry import MODELS, NORMS
from tests.start_up import heavy_imports

IMAGE = (3, 32, 32)


def by_torch(network: torch.nn.Module, inputs: torch.Tensor, *, backward: bool) -> float:
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(backward):
        logits = network.eval()(inputs)[1]
        if backward:
            logits.sum().backward()
    return counter.get_total_flops() / 2


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS.classes)
def test_they_are_those_of_torchs_own_counter(model: str) -> None:
    shape = (8, 20) if model == "text" else IMAGE
    settings = {"arch": "shufflenet_v2_x0_5"} if model == "torchvision" else {}
    network = build(MODELS.parse({"name": model, **settings}), shape, 10, NORMS.parse("none"), False, seed=0)
    inputs = torch.zeros(2, 8, dtype=torch.int32) if model == "text" else torch.zeros(2, *IMAGE)
    for backward in (False, True):
        assert sample_flops(network, shape, backward=backward) == by_torch(network, inputs, backward=backward) > 0


#: Runs of two seeds, which train as one stack.
SWEEP = """
version: 1
name: pair
base: {rounds: 1, E: 1, model: {name: mlp, widths: [16]}}
seeds: [0, 1]
wandb: {mode: off}
report: {rows: [method]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_training_imports_no_compiler(tmp_path: Path, several: bool) -> None:
    (spec := tmp_path / "pair.yaml").write_text(SWEEP)
    store, words = str(tmp_path / "store"), ["sweep", str(spec), "--backend", "inline", "--store"]
    run = f"flbench.run(rounds=1, E=1, store={store!r})"
    sweep = f"import contextlib, flbench.cli, sys; sys.argv[1:] = {[*words, store]!r}\n"
    sweep += "with contextlib.suppress(SystemExit): flbench.cli.main()"
    program = f"import flbench; {sweep if several else run}"
    imported, _ = heavy_imports(program, ("torch", "torch._dynamo", "torch._inductor", "sympy"))
    assert imported == ["torch"]
