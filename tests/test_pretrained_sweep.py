"""The sweep of pretrained starts and the one that it starts from: how they fit, and one round of each kind of row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flbench
from flbench.errors import UserError
from flbench.models.architectures.efficientnet_lite import EfficientNetLite0
from flbench.models.efficientnet_network import EfficientNetLite0 as Network
from flbench.sweeps import load_sweep
from tests.data.files import pixels

SWEEPS = Path(__file__).parents[1] / "sweeps"
LITE = "efficientnet-lite0"


def runs(path: Path) -> list[Any]:
    return list(load_sweep(path).experiments)


def images(path: Path, classes: int) -> dict[str, str]:
    x, y = pixels(12, (3, 32, 32)), np.arange(12) % classes
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return {"name": "arrays", "path": str(path)}


def test_the_parts_of_the_sweep() -> None:
    found = Counter((one.model.name, one.init.name, one.train) for one in runs(SWEEPS / "pretrained.yaml"))
    assert found == {
        ("mlp", "random", "all"): 108, (LITE, "package", "norm"): 27, (LITE, "package", "head+norm"): 27,
        (LITE, "package", "head+lora:4"): 27, ("cnn", "sweep", "all"): 54, ("cnn", "random", "all"): 54,
    }  # fmt: skip


def test_every_row_that_goes_on_has_one_run_to_start_from() -> None:
    before = runs(SWEEPS / "pretrain_tinyimagenet.yaml")
    after = [one for one in runs(SWEEPS / "pretrained.yaml") if one.init.name == "sweep"]
    settings = [{(one.model, one.norm, one.seed, one.dataset.image) for one in some} for some in (before, after)]
    assert settings[0] == settings[1] and len(settings[0]) == len(before)
    assert {one.init.sweep for one in after} == {"pretrain_tinyimagenet"}


def test_pretraining_then_federating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both files' settings on few small images; the error without pretraining names the sweep to run."""
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    text = (SWEEPS / "pretrain_tinyimagenet.yaml").read_text()
    small = images(tmp_path / "a.npz", 3)
    for old, new in (("{name: tinyimagenet, size: 32}", str(small)), ("rounds: 20", "rounds: 1"),
                     ("model: cnn", "model: {name: mlp, widths: [4]}"), ("seeds: [0, 1, 2]", "seeds: [0, 1]"),
                     ("local_epochs: 1", "local_epochs: 1\n  batch_size: 4")):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "sweeps/pretrain_tinyimagenet.yaml").write_text(text)
    init = next(one.init for one in runs(SWEEPS / "pretrained.yaml") if one.init.name == "sweep")
    row = {"model": {"name": "mlp", "widths": [4]}, "dataset": images(tmp_path / "b.npz", 2), "clients": 2, "rounds": 1,
           "partition": "classes:1", "E": 1, "lr": 1e-30, "batch_size": 2, "norm": "ln", "init": init}  # fmt: skip
    place: dict[str, Any] = {"store": tmp_path / "store", "device": "cpu"}
    with pytest.raises(UserError, match="is not finished; run flbench sweep pretrain_tinyimagenet first"):
        flbench.run(**place, **row)
    flbench.sweep("pretrain_tinyimagenet", store=tmp_path / "store")
    weights = []
    for seed in (0, 1):
        run_id = flbench.run(**place, **row, seed=seed)["run_id"].iloc[-1]
        weights.append(flbench.model(run_id, store=tmp_path / "store").state_dict()["trunk.dense1.weight"])
    assert not torch.equal(*weights)


@pytest.mark.slow
@pytest.mark.parametrize("train", ["norm", "head+norm", "head+lora:4"])
def test_a_round_of_efficientnet_from_a_packages_weights(
    train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row does not train stays as the package has it; the package's file is replaced by a random one."""
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    shipped = Network(0, 0).state_dict()
    torch.save(shipped, tmp_path / "lite.pth")
    monkeypatch.setattr(EfficientNetLite0, "package_weights", lambda self: tmp_path / "lite.pth")
    row = next(one for one in runs(SWEEPS / "pretrained.yaml") if one.train == train and one.norm.name == "fn")
    fields = {name: getattr(row, name) for name in ("model", "norm", "init", "train")}
    few = {
        "clients": 2,
        "partition": "iid",
        "rounds": 1,
        "E": 1,
        "batch_size": 2,
        "dataset": images(tmp_path / "a.npz", 2),
    }
    run_id = flbench.run(store=tmp_path / "store", device="cpu", **fields, **few)["run_id"].iloc[-1]
    state = flbench.model(run_id, store=tmp_path / "store").state_dict()
    moved = {
        name
        for name, leaf in shipped.items()
        if f"body.{name}" in state and not torch.equal(state[f"body.{name}"], leaf)
    }
    norms = {name for name in moved if "_bn" in name}
    assert moved == norms and bool(norms) == ("norm" in train)
    assert any("lora_B" in name and leaf.any() for name, leaf in state.items()) == ("lora" in train)
