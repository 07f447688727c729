"""Apple's GPU without one: which device is chosen, what is refused, and that torch has the engine's operations on MPS.

No test runs on a Mac. The operations of a round are recorded on a CPU and looked up in the table from which torch
generates its dispatcher, which the package of torch contains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchgen
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey, NativeFunction

from flbench.cli import app
from flbench.config import parse_experiment, require_device
from flbench.data.arrays import Arrays, Data
from flbench.engine import run
from flbench.engine.device_data import without_float64
from flbench.engine.setup import make_trainer, runs_worth_fusing
from flbench.errors import UserError
from flbench.launchers import used_device
from flbench.methods.base import Tree

BASE: dict[str, Any] = {"rounds": 2, "E": 2, "model": {"name": "mlp", "widths": [8]}}


def see_mps(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)


def test_mps_is_used_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    see_mps(monkeypatch, True)
    assert used_device("mps") == "mps"
    assert used_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    see_mps(monkeypatch, False)
    with pytest.raises(UserError, match="torch sees no Apple GPU here"):
        used_device("mps")


def test_a_gpu_that_is_not_there_is_a_mistake_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["run", "rounds=1", "--device", "cuda", "--store", str(tmp_path / "runs")]
    with pytest.raises(UserError, match="--device cuda: torch sees no GPU here; use --device cpu"):
        app(arguments, standalone_mode=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"precision": "fp64"}, "precision: fp64 is not supported on MPS, which has no float64; fp32 is"),
        ({"precision": "bf16"}, "precision: bf16 is not supported on MPS"),
        ({"precision": "tf32"}, "precision: tf32 is not supported on MPS"),
        ({"probes": ["drift"]}, "probes: they compute in float64"),
        ({"kind": "sharpness"}, "kind: sharpness computes in float64"),
    ],
)
def test_what_needs_float64_is_refused(fields: dict[str, Any], says: str) -> None:
    experiment = parse_experiment(fields if "kind" in fields else {**BASE, **fields})
    with pytest.raises(UserError, match=says):
        require_device([experiment], lambda: "mps")
    require_device([experiment], lambda: "cuda")


def test_plain_training_is_allowed_without_asking_for_the_device() -> None:
    require_device([parse_experiment(BASE)], lambda: pytest.fail("importing torch takes seconds"))


class Recorder(TorchDispatchMode):
    """The names of all operations, and those that read or wrote a float64 tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.in_float64: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names.add(func.name().removeprefix("aten::"))
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves((args, out)) if isinstance(leaf, torch.Tensor)]
        if any(leaf.dtype == torch.float64 for leaf in tensors):
            self.in_float64.add(func.name())
        return out


@cache
def natives() -> tuple[dict[str, NativeFunction], Callable[[NativeFunction], bool]]:
    """Torch's operations by name, and whether one has a kernel for MPS or is composed of others."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    by_name = {str(one.func.name): one for one in parsed.native_functions}
    mps = parsed.backend_indices[DispatchKey.MPS]

    def works(one: NativeFunction) -> bool:
        if one.has_composite_kernel or mps.has_kernel(one):
            return True
        return one.structured_delegate is not None and mps.has_kernel(by_name[str(one.structured_delegate)])

    return by_name, works


def pictures(dataset: str) -> Data:
    """Random images in the shape of a data set's, 20 of each class."""
    image, white = ((1, 8, 8), 16) if dataset == "digits" else ((3, 32, 32), 255)
    pixels = np.random.default_rng(0).integers(0, white + 1, (200, *image), dtype=np.uint8)
    arrays = Arrays(pixels, np.arange(200) % 10)
    return Data(arrays, arrays, 10, tuple("0123456789"), white, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norm": "ln", "method": "scaffold", "momentum": 0.9},
        {"norm": "bn", "method": "fedyogi", "val_fraction": 0.2},
        {"norm": "fn", "method": "fedsam"},
        {"kind": "centralized", "norm": "ln", "lr": 0.1},
        {"dataset": "cifar10", "model": "cnn", "norm": "gn", "method": "feddyn", "augment": "flip-crop"},
        {"dataset": "cifar10", "model": "lenet", "norm": "bn", "method": "moon"},
        {"dataset": "cifar10", "model": {"name": "simple-vit", "width": 8, "depth": 1}, "optimizer": "adam"},
    ],
    ids=lambda fields: "-".join(str(one) for one in fields.values()) or "plain",
)
def test_a_round_has_only_operations_that_mps_has(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of the round are those that MPS gets; they are drawn on the CPU, which is not recorded."""
    common = {name: value for name, value in BASE.items() if fields.get("kind") is None or name != "E"}
    experiment = parse_experiment({**common, "batch_size": 4, **fields})
    data = pictures(str(fields.get("dataset", "digits")))
    recorder = Recorder()

    def drawn(tree: Tree, device: torch.device) -> Tree:
        with _disable_current_modes():
            return without_float64(tree)

    monkeypatch.setattr(run, "on_device", drawn)
    trainer, _ = make_trainer(experiment, data, device="cpu", executor="stacked", pool=1)  # type: ignore[arg-type]
    with recorder:
        trainer.step()
    assert recorder.in_float64 <= {"aten::lift_fresh"}, "torch.from_numpy, where the inputs are drawn"
    with recorder:
        trainer.evaluate()
    by_name, works = natives()
    assert {name for name in recorder.names if name in by_name and not works(by_name[name])} == set()
    assert len(recorder.names & by_name.keys()) > 20


def test_no_memory_of_cuda_is_measured_on_mps() -> None:
    experiment = parse_experiment(BASE)
    assert runs_worth_fusing(experiment, pictures("digits"), device="mps", executor="stacked") > 1  # type: ignore[arg-type]
