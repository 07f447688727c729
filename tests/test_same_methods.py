"""Methods that train the same model: what they declare, against runs and against the committed results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from flbench.config import Federated, parse_experiment
from flbench.exchange.transfer import FilesSource
from flbench.methods.fedbn import FedBN
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.models.sites import Shape, Site
from flbench.registry import MODELS, NORMS
from flbench.report.cells import unit_of
from flbench.store import Store
from tests.own_models import OWN_MODELS, Halves
from tests.test_execution import run

ROOT = Path(__file__).parents[1]
SMALL = {"model": {"name": "mlp", "widths": [8]}, "lr": 0.1, "rounds": 3, "eval_every": 3}

#: Settings in which a method is FedAvg.
SAME: list[dict[str, Any]] = [
    {"method": "fedbn", "norm": "ln"},
    {"method": "fednova", "partition": "dirichlet:0.1"},
    {"method": "fedprox", "E": 1, "momentum": 0.9, "weight_decay": 0.01},
    {"method": {"name": "fedprox", "mu": 0}},
    {"method": "fedrs", "partition": "iid"},
    {"method": {"name": "fedrs", "alpha": 1}},
]
#: Settings in which it is not.
OTHER: list[dict[str, Any]] = [
    {"method": "fedbn", "norm": "bn"},
    {"method": "fedbn", "norm": "bn-last"},
    {"method": "fednova", "partition": "dirichlet:0.1", "local_epochs": 1},
    {"method": "fedprox", "E": 2},
    {"method": "fedrs", "partition": "classes:2"},
    {"method": "fedrs", "partition": "iid", "clients": 100},
    {"method": "fedavgm"},
]


def federated(**fields: Any) -> Federated:
    found = parse_experiment({**SMALL, **fields})
    assert isinstance(found, Federated)
    return found


def test_methods_declare_where_they_are_fedavg() -> None:
    for fields in SAME:
        experiment = federated(**fields)
        assert experiment.method.same_as(experiment).name == "fedavg", fields
    for fields in OTHER:
        experiment = federated(**fields)
        assert experiment.method.same_as(experiment) is experiment.method, fields
    assert federated(**SAME[0]).method.same_as(federated(**SAME[0])).server_lr == 1.0


def test_fedbn_asks_the_network_of_a_model_that_builds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bn-cnn", "encoder"):
        monkeypatch.setitem(MODELS.classes, name, type(OWN_MODELS[name]))
    for model, dataset, same in (
        ("bn-cnn", "cifar10", "fedbn"),
        ("encoder", "digits", "fedavg"),
        ("bn-cnn", {"name": "arrays", "path": "mine.npz"}, "fedbn"),
        ("encoder", {"name": "arrays", "path": "mine.npz"}, "fedbn"),  # the shape of its images is not known
    ):
        experiment = federated(method="fedbn", model=model, dataset=dataset)
        assert experiment.method.same_as(experiment).name == same, (model, dataset)


@dataclass(frozen=True)
class OwnLayer(Model):
    """A model that builds itself, with flbench's own batch normalization whatever the norm."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        layer = NORMS.parse("bn").layer(Site("after", (4,)))
        return Halves(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), layer), nn.Linear(4, classes))


def test_fedbn_finds_flbenchs_own_batch_normalization_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnLayer, "name", "own-layer", raising=False)
    monkeypatch.setitem(MODELS.classes, "own-layer", OwnLayer)
    experiment = federated(method="fedbn", model="own-layer")
    assert experiment.method.same_as(experiment).name == "fedbn"


@pytest.mark.slow
@pytest.mark.parametrize("fields", SAME, ids=str)
def test_their_runs_are_equal_to_the_bit(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Other settings of the same methods have other results, so that the comparison can fail."""
    own, same = federated(**fields), federated(**{**fields, "method": "fedavg"})
    store = Store(tmp_path)
    (_, records), (_, expected) = run(store, own), run(store, same)
    assert records == expected


@pytest.mark.slow
@pytest.mark.parametrize("fields", OTHER, ids=str)
def test_other_runs_are_not(tmp_path: Path, fields: dict[str, Any]) -> None:
    own, plain = federated(**fields), federated(**{**fields, "method": "fedavg"})
    store = Store(tmp_path)
    (_, records), (_, expected) = run(store, own), run(store, plain)
    assert records[-1]["loss"] != expected[-1]["loss"]


@pytest.mark.parametrize("name", NORMS.classes)
def test_norms_declare_whether_they_have_batch_norm(name: str) -> None:
    """FedBN keeps something on the clients exactly there."""
    norm = NORMS.parse(name)
    network = build(MODELS.parse("cnn"), (3, 32, 32), 10, norm, bias=True, seed=0)
    assert bool(FedBN().local_names(network)) == norm.has_batch_norm


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "cifar10", "fashion_mnist"])
def test_committed_results_agree(name: str) -> None:
    """All metrics of runs that are declared the same are equal to the bit, and hundreds of runs are."""
    source = FilesSource([ROOT / f"results/{name}.parquet"])
    by_unit: dict[Any, set[str]] = {}
    runs = 0
    for stored in source.stored_runs():
        experiment = stored.experiment
        if not isinstance(experiment, Federated):
            continue
        for result in source.results(stored.run_id):
            unit = unit_of(experiment, result.rounds, result.fingerprint)
            numbers = {key: value for key, value in result.final.items() if key not in ("seconds", "probes")}
            by_unit.setdefault((unit, experiment.seed), set()).add(json.dumps([result.status, numbers]))
            runs += 1
    assert {len(found) for found in by_unit.values()} == {1}
    assert len(by_unit) < runs or name != "digits"
