"""Models of another package in stored runs: their weights, checkpoints and ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flbench
from flbench.config import parse_experiment
from flbench.data.datasets import Dataset, load
from flbench.models.base import Model
from flbench.models.norms import Norm
from flbench.models.sites import Shape
from flbench.registry import MODELS
from flbench.store import Store
from tests.own_models import BatchNormCnn, Halves, Pretrained

RUN: dict[str, Any] = {"clients": 3, "partition": "classes:5", "rounds": 3, "E": 2, "lr": 0.1, "eval_every": 1}


@dataclass(frozen=True)
class MobileNet(Model):
    """Torchvision's mobilenet_v3_small with a frozen body."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        from torchvision.models import mobilenet_v3_small

        class Body(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.features = mobilenet_v3_small(weights=None).features.requires_grad_(False)

            def forward(self, images: Tensor) -> Tensor:
                x = nn.functional.interpolate(images.expand(-1, 3, -1, -1), size=32)
                out: Tensor = self.features(x).mean((2, 3))
                return out

        return Halves(Body(), nn.Linear(576, classes))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, model in {"own-pretrained": Pretrained, "own-bn-cnn": BatchNormCnn, "own-mobilenet": MobileNet}.items():
        monkeypatch.setattr(model, "name", name, raising=False)
        monkeypatch.setitem(MODELS.classes, name, model)
    yield


def trained(store: Path, model: str, **fields: Any) -> tuple[str, float]:
    curve = flbench.run(store=store, device="cpu", model=model, **{**RUN, **fields})
    return str(curve["run_id"].iloc[-1]), float(curve["acc_global"].iloc[-1])


def accuracy(store: Path, run_id: str) -> float:
    dataset = parse_experiment({}).dataset  # type: ignore[attr-defined]
    assert isinstance(dataset, Dataset)
    test = load(dataset).test
    found = flbench.predict(run_id, test.images, store=store)
    return float((found.idxmax(axis=1).astype(int) == test.labels).mean())


@pytest.mark.parametrize("kind", ["federated", "centralized"])
def test_a_stored_run_has_its_frozen_weights(kind: str, tmp_path: Path) -> None:
    fields = {name: value for name, value in RUN.items() if kind == "federated" or name not in ("clients", "partition")}
    curve = flbench.run(store=tmp_path, device="cpu", kind=kind, model="own-pretrained", **fields)
    run_id = str(curve["run_id"].iloc[-1])
    network = flbench.model(run_id, store=tmp_path)
    state = network.state_dict()
    assert (state["body.1.0.weight"] == 0.5).all() and (state["body.1.1.running_mean"] == 0.25).all()
    frozen = {name for name, leaf in network.named_parameters() if not leaf.requires_grad}
    assert frozen and all(name.startswith("body.1.") for name in frozen)
    assert accuracy(tmp_path, run_id) == curve["acc" if kind == "centralized" else "acc_global"].iloc[-1]


def test_the_model_with_batch_normalization_of_torch(tmp_path: Path) -> None:
    run_id, last = trained(tmp_path, "own-bn-cnn")
    state = flbench.model(run_id, store=tmp_path).state_dict()
    assert int(state["body.2.num_batches_tracked"]) == 3 * 2
    assert accuracy(tmp_path, run_id) == last


@pytest.mark.slow
def test_torchvisions_mobilenet_with_a_frozen_body(tmp_path: Path) -> None:
    short = {"rounds": 1, "E": 1, "batch_size": 4}
    network = flbench.model(trained(tmp_path, "own-mobilenet", **short)[0], store=tmp_path)
    with torch.random.fork_rng(devices=[]):
        other = flbench.model(trained(tmp_path, "own-mobilenet", **short, lr=0.2)[0], store=tmp_path)
    same = {name for name, leaf in network.state_dict().items() if torch.equal(leaf, other.state_dict()[name])}
    assert same == {name for name in network.state_dict() if name.startswith("body.")}


def test_only_models_that_initialize_themselves_have_it_in_their_ids(tmp_path: Path) -> None:
    assert Pretrained().identity() == {"name": "own-pretrained", "version": 1, "weights": "build"}
    for name in ("mlp", "cnn", "lenet", "resnet18", "simple-vit"):
        assert MODELS.parse(name).identity() == {"name": name, "version": 1}
    run_id, _ = trained(tmp_path, "own-pretrained", rounds=1)
    assert Store(tmp_path, create=False).run(run_id).experiment().run_id == run_id
