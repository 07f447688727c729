from __future__ import annotations

import csv
from collections import Counter
from importlib import resources
from typing import Any

import pytest

from flbench.config import Federated, parse_experiment
from flbench.papers.label_skew.published import Configuration, configuration_of, other_data, published_rows, remarks
from flbench.registry import DATASETS, METHODS, MODELS, NORMS


def paper(**fields: Any) -> Federated:
    """Table 10's FedAvg, one class a client, E = 10, with other ``fields``; None removes one."""
    base = {"dataset": "cifar10", "model": "cnn", "rounds": 10_000, "lr": 0.01, "batch_size": 32, "local_steps": 10}
    experiment = parse_experiment({name: value for name, value in {**base, **fields}.items() if value is not None})
    assert isinstance(experiment, Federated)
    return experiment


def test_the_file_is_part_of_the_package() -> None:
    text = resources.files("flbench.papers.label_skew").joinpath("published.csv").read_text(encoding="utf-8")
    assert len(list(csv.DictReader(text.splitlines()))) == len(published_rows()) == 365


def test_every_row_is_read() -> None:
    rows = published_rows()
    tables = {"1": 81, "2": 12, "3": 30, "4": 18, "5": 15, "6": 9, "10": 81, "11": 81, "12": 18, "13": 12, "14": 8}
    assert Counter(row.table for row in rows) == tables
    first = rows[0]
    expected = Configuration("cifar10", "resnet18", "classes:1", 10, 10, False, 0.01, 32, "fedavg", "none", None)
    assert (first.table, first.label, first.configuration, first.rounds) == ("1", "FedAvg", expected, 10_000)
    assert (first.text, first.value, first.sd, first.seeds) == ("55.0", 55.0, "", 1)
    assert [(row.text, row.sd, row.seeds) for row in rows if row.sd][-1] == ("83.40", "4.90", 3)
    assert {row.configuration.groups for row in rows} == {None, 2}


def test_every_name_in_the_file_is_registered() -> None:
    configurations = [row.configuration for row in published_rows()]
    for registry, field in ((DATASETS, "dataset"), (MODELS, "model"), (METHODS, "method"), (NORMS, "norm")):
        assert {getattr(one, field) for one in configurations} <= {*registry.classes}


def test_34_configurations_have_several_numbers() -> None:
    values: dict[Configuration, set[str]] = {}
    for row in published_rows():
        values.setdefault(row.configuration, set()).add(row.text + row.sd)
    assert sum(len(numbers) > 1 for numbers in values.values()) == 34
    fedavg = configuration_of(paper())
    assert fedavg is not None
    assert values[fedavg] == {"55.86", "56.82", "55.760.55"}


def test_the_configuration_of_an_experiment() -> None:
    column = ("cifar10", "cnn", "classes:1", 10, 10, False, 0.01, 32)
    skewed = configuration_of(paper(partition="dirichlet:0.10"))
    assert skewed is not None
    assert skewed.partition == "dirichlet:0.1"
    assert configuration_of(paper()) == (*column, "fedavg", "none", None)
    assert configuration_of(paper(norm="gn", method="fedyogi")) == (*column, "fedyogi", "gn", 2)
    for scaffold in ("scaffold", {"name": "scaffold", "variant": "text"}):
        assert configuration_of(paper(method=scaffold)) == (*column, "scaffold", "none", None)


@pytest.mark.parametrize(
    "free",
    [
        {"rounds": 5},
        {"seed": 7},
        {"eval_every": 3},
        {"precision": "tf32"},
        {"method": {"name": "fedavg", "server_lr": 1.0}},
    ],
)
def test_settings_that_are_not_part_of_a_configuration(free: dict[str, Any]) -> None:
    assert configuration_of(paper(**free)) == configuration_of(paper())


@pytest.mark.parametrize(
    "other",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"participation": 0.5},
        {"val_fraction": 0.1},
        {"augment": "none"},
        {"method": {"name": "fedprox", "mu": 1.0}},
        {"method": {"name": "fedavg", "server_lr": 0.5}},
        {"local_epochs": 1, "local_steps": None},
    ],
)
def test_other_settings_have_no_configuration(other: dict[str, Any]) -> None:
    assert configuration_of(paper(**other)) is None


def test_centralized_training_has_no_configuration() -> None:
    assert configuration_of(parse_experiment({"kind": "centralized", "dataset": "cifar10", "model": "cnn"})) is None


def test_data_that_differ_from_the_papers() -> None:
    pacs = paper(dataset="pacs", model="resnet18", clients=12, partition="domain-dirichlet:0.5")
    assert other_data(pacs, "0" * 16, None) == "64 pixels, the paper's code has 224"
    tiny = paper(dataset="tinyimagenet", model="resnet18", clients=200, partition="dirichlet:0.01")
    assert other_data(tiny, "f2cb16468fe261ed", None) == "70 of 500 training and 20 of 50 test images a class"
    assert other_data(tiny, "0" * 16, "100000/10000") is None
    assert other_data(tiny, "0" * 16, "14000/4000") == "14000/4000 images in train and test, not 100000/10000"
    assert other_data(tiny, "0" * 16, None) == "how many images there were is not recorded"
    assert other_data(tiny, None, None) is None  # no result yet
    assert other_data(paper(), "0" * 16, None) is None
    assert other_data(paper(), "0" * 16, "300/60") == "300/60 images in train and test, not 50000/10000"


def test_remarks_name_mistakes_and_contradictions() -> None:
    about = {row.label: remarks(row) for row in published_rows() if row.table == "11"}
    assert any("control variates stay 0" in text for text in about["SCAFFOLD"])
    assert about["FedAvg"] == [
        "Table 1 heads the third column Dir(0.1) with the same E=10 numbers",
        "Table 9 says lr 0.1 for all of CIFAR-100, the text only for E=1",
    ]
    fedlc = [row for row in published_rows() if row.label == "FedLC" and row.table == "10"]
    assert any("untrained network" in text for text in remarks(fedlc[0]))
    assert remarks(fedlc[-1]) == []
