from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import UserError
from tests.data.files import pixels, write_folder
from tests.data.test_paper_sets import write_pacs


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLBENCH_DATA", raising=False)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["show", "partition", *arguments])


def test_the_counts_as_json() -> None:
    record = json.loads(call("partition=dirichlet:0.5", "clients=4", "seed=3", "min_size=9", "--json").stdout)
    assert record["partition"] == {"name": "dirichlet", "beta": 0.5}
    assert (record["clients"], record["seed"], record["min_size"], record["dataset"]) == (4, 3, 9, {"name": "digits"})
    assert sum(map(sum, record["train"])) == 1442
    assert sum(map(sum, record["test"])) == 355
    assert min(map(sum, record["train"])) >= 9


def test_the_table(tmp_path: Path) -> None:
    lines = call("partition=classes:1", "clients=10").stdout.splitlines()
    assert lines[0].strip() == "digits, classes:1, 10 clients, seed 0"
    assert lines[1].split() == ["client", *"0123456789", "train", "test"]
    rows = [line.split() for line in lines[2:12]]
    assert [row[0] for row in rows] == [str(n) for n in range(10)]
    assert all(row.count("·") == 9 for row in rows)
    assert sum(int(row[-2]) for row in rows) == 1442
    # With many classes it names the largest.
    half = {f"c{n:02d}/{i}.png": pixels(1, (3, 2, 2))[0] for n in range(25) for i in "ab"}
    images = {f"{name}/{path}": image for name in ("train", "test") for path, image in half.items()}
    write_folder(tmp_path / "photos", images)
    lines = call(f"dataset=folder:{tmp_path}/photos", "partition=iid", "clients=1").stdout.splitlines()
    assert lines[1].split() == ["client", "classes", "largest", "train", "test"]
    assert (lines[2].split()[:2], lines[2].split()[-2:]) == (["0", "25"], ["50", "50"])


def test_clients_are_shown_with_their_domains(tmp_path: Path) -> None:
    write_pacs(tmp_path)
    fields = ("dataset=pacs", "partition=domain-classes:2-2-3", "clients=12", "--data", str(tmp_path))
    rows = [line.split() for line in call(*fields).stdout.splitlines()[2:]]
    assert [row[:2] for row in rows][::3] == [["0", "photo"], ["3", "art_painting"], ["6", "cartoon"], ["9", "sketch"]]
    assert json.loads(call(*fields, "--json").stdout)["domains"][11] == ["sketch"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    result = call("clients=10", "--out", str(path))
    assert result.exit_code == 0
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert f"wrote {path}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clients=0"], "clients: expected a value of at least 1, got 0"),
        (["clients=many"], "clients: "),
        (["partition=classes:11"], "a client cannot hold 11 classes, there are 10; use at most classes:10"),
        (["partition=dirichlet:-1"], "partition.beta: expected a value greater than 0, got -1"),
        (["partition=dirichlet"], "partition.beta: a value is required here"),
        (["partition=dirichle:1"], "unknown partition 'dirichle'"),
        (["dataset=digit"], "unknown dataset 'digit'"),
        (
            ["lr=0.1"],
            "a field of dataset, partition, clients, seed, min_size, val_fraction, server_fraction",
        ),
        (["clients=3", "digits"], "got 'digits'"),
        (["digits"], "unknown partition 'digits'"),
        (["iid", "--out", "picture.png"], "--out and --data are options of flbench show partition FIELD=VALUE..."),
        (["clients=3", "clients=3"], "clients is given twice"),
        (["partition=dirichlet:0.01", "min_size=140"], "raise 'beta', or lower 'clients' or 'min_size'"),
        (["clients=10", "--out", "picture.jpg"], "expected a name that ends in .png, .svg, .pdf"),
        (["dataset=cifar10", "--data", "/nonexistent"], "the data set cifar10 is missing"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], message: str) -> None:
    error = call(*arguments).exception
    assert isinstance(error, UserError)
    assert message in str(error)
