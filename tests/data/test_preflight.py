"""What does not fit the data is refused before the first run starts, with one message and exit code 2."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from flbench.cli import app
from flbench.config import parse_experiment
from flbench.data import preflight, shards
from flbench.data.datasets import load
from flbench.data.preflight import misfits, require_classes
from flbench.errors import UserError
from flbench.planning import resolve_data
from flbench.registry import DATASETS
from flbench.store import Store
from tests.data.files import folder_set, pixels, write_folder, write_halves
from tests.report.stores import finish


def archive(path: Path, train: Any, test: Any, image: tuple[int, int, int] = (1, 8, 8), **arrays: Any) -> str:
    """Write an archive with these labels; return the data set as users write it."""
    y_train, y_test = np.array(train), np.array(test)
    x_train, x_test = pixels(len(y_train), image), pixels(len(y_test), image, seed=1)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, **arrays)
    return f"arrays:{path}"


def refused(store: Path, *fields: str) -> str:
    """Return the message with which ``run``, ``sweep`` and its dry run refuse an experiment, before any writes."""
    base = {name: value for name, _, value in (field.partition("=") for field in fields)}
    spec = store.parent / "sweep.yaml"
    lines = "".join(f"  {name}: {value}\n" for name, value in base.items())
    spec.write_text(f"version: 1\nname: unfit\nbase:\n{lines}")
    calls = (["run", *fields], ["sweep", str(spec)], ["sweep", str(spec), "--dry-run"])
    results: list[Result] = [CliRunner().invoke(app, [*call, "--store", str(store)]) for call in calls]
    assert all(isinstance(result.exception, UserError) for result in results), [result.output for result in results]
    (message,) = {str(result.exception) for result in results}
    assert not store.exists()
    return message


PLAIN = ("model=mlp", "partition=iid", "clients=2", "rounds=1")


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (range(1, 6), range(1, 6), r"no images of class 0 \(labels count from 0 to 5\)"),
        ([0, 1, 7], [0, 1, 7], "no images of 5 of 8 classes: 2, 3, 4, 5, 6"),
        ([0, 1, 2, 255], [0, 1, 2], "252 of 256 classes: .* and 242 more .*; training images and no test images of "),
        ([0, 1, 2], [0, 1], "has training images and no test images of class 2. Add the images"),
    ],
)
def test_a_class_without_images_is_refused(tmp_path: Path, train: Any, test: Any, says: str) -> None:
    dataset = archive(tmp_path / "a.npz", [*train] * 10, [*test] * 3)
    message = refused(tmp_path / "store", f"dataset={dataset}", *PLAIN)
    assert message.startswith(f"{dataset} has ")
    with pytest.raises(UserError, match=says):
        require_classes(DATASETS.parse(dataset), load(DATASETS.parse(dataset)))


def test_a_class_that_is_only_named_or_only_in_test_is_refused(tmp_path: Path) -> None:
    image = pixels(1, (1, 4, 4))[0]
    write_halves(tmp_path / "img", ["a/0.png", "b/0.png"], image)
    (tmp_path / "img/classes.txt").write_text("a\nb\nc\n")
    named = f"dataset=folder:{tmp_path / 'img'}"
    assert "no images of class c (labels count from 0 to 2)" in refused(tmp_path / "store", named, *PLAIN)
    write_folder(tmp_path / "img", {"test/c/0.png": image})
    assert "test images and no training images of class c" in refused(tmp_path / "store", named, *PLAIN)


def test_labels_are_renumbered_if_that_is_wanted(tmp_path: Path) -> None:
    given = archive(tmp_path / "gap.npz", [5, 1, 7] * 4, [7, 5, 1])
    plain = DATASETS.parse(given)
    renumbered = DATASETS.parse({"name": "arrays", "path": plain.path, "labels": "renumber"})
    data = load(renumbered)
    assert data.train.labels.tolist() == [1, 0, 2] * 4 and data.test.labels.tolist() == [2, 1, 0]
    assert (data.classes, data.class_names) == (3, ("1", "5", "7"))
    require_classes(renumbered, data)
    assert load(plain).train.labels.tolist() == [5, 1, 7] * 4, "each reading has an entry of its own"
    straight = DATASETS.parse(archive(tmp_path / "straight.npz", [1, 0, 2] * 4, [2, 1, 0]))
    assert load(straight).fingerprint == data.fingerprint, "the content, and not its numbering, identifies a run"
    named = [one.holding(load(one).fingerprint) for one in (straight, renumbered)]
    assert named[0].identity() == named[1].identity()


def test_renumbering_keeps_the_names_of_classes(tmp_path: Path) -> None:
    write_halves(tmp_path, ["dog/0.png", "fox/0.png"])
    (tmp_path / "classes.txt").write_text("fox\ncat\ndog\n")
    data = load(folder_set(tmp_path, labels="renumber"))
    assert (data.class_names, data.train.labels.tolist()) == (("fox", "dog"), [1, 0])


@pytest.mark.parametrize("test", [[-1, 0, 1], [0, 1, 2**31 - 1]])
def test_labels_that_are_none_stay_refused(tmp_path: Path, test: list[int]) -> None:
    dataset = archive(tmp_path / "a.npz", [0, 1, 2, test[0], test[2]], test)
    with pytest.raises(UserError, match=r"label -1 is not in 0\.\.|label 2147483647 is too large"):
        load(DATASETS.parse(dataset))


def test_the_id_of_a_run_has_the_numbering_only_if_it_is_given() -> None:
    assert DATASETS.parse("arrays:a.npz").identity() == {"name": "arrays", "version": 1, "path": "a.npz"}
    renumbered = DATASETS.parse({"name": "arrays", "path": "a.npz", "labels": "renumber"})
    assert renumbered.identity()["labels"] == "renumber"


GREY, COLOUR = (1, 8, 8), (3, 32, 32)
EVEN = [0, 1, 2, 3] * 10


@pytest.mark.parametrize(
    ("image", "labels", "fields", "says"),
    [
        (GREY, EVEN, ["model=lenet"], "model: lenet on arrays:.*: images of 8x8 pixels are too small"),
        (GREY, EVEN, ["model=lenet", "kind=centralized"], "images of 8x8 pixels are too small"),
        (COLOUR, EVEN, ["model={name: simple-vit, patch: 5}"], "cannot be cut into patches of 5x5"),
        (GREY, EVEN, ["norm={name: gn, groups: 128}"], "norm: gn.* in mlp: a group of a layer is a single number"),
        (GREY, EVEN, ["norm=in"], "norm: in in mlp: no layer has pixels"),
        (GREY, EVEN, ["head=etf", "model={name: mlp, widths: [2]}"], "head: etf on mlp"),
        (GREY, EVEN, ["partition=classes:5"], "partition: classes:5 of arrays:.*: a client cannot hold 5 classes"),
        (GREY, EVEN, ["partition=given"], "the data set does not name its clients"),
        (GREY, EVEN, ["clients=41"], "clients: arrays:.*: 41 clients .* need 41, the set has 40"),
        (GREY, [0, 1, 2] * 10 + [3], ["partition=classes:4"], "a.npz: classes:4: class 3 has 1 training samples"),
        (GREY, [0] * 37 + [1, 2, 3], ["partition=quantity:0.001", "min_size=20"], "a.npz: quantity.* smallest client"),
        # 40 samples of 2 clients: 20 each, and a last batch of 1, 2 or 0.
        (GREY, EVEN, ["norm=bn", "batch_size=19", "drop_last=false", "local_epochs=1"], "a.npz: drop_last: bn needs"),
        (GREY, EVEN, ["norm=bn-last", "batch_size=19", "drop_last=false", "local_epochs=1"], "bn-last needs"),
        (GREY, EVEN, ["method=feddecorr", "batch_size=19", "drop_last=false", "local_epochs=3"], "feddecorr.* needs"),
        (GREY, EVEN, ["kind=centralized", "val_fraction=0.99"], "val_fraction: 0.99 of the 40 .* leaves none"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(
    tmp_path: Path, image: tuple[int, int, int], labels: list[int], fields: list[str], says: str
) -> None:
    dataset = archive(tmp_path / "a.npz", labels, [0, 1, 2, 3], image)
    given = dict(field.split("=") for field in PLAIN) | {"dataset": dataset}
    given |= dict(field.split("=") for field in fields)
    if "kind" in given:
        given = {name: value for name, value in given.items() if name not in ("partition", "clients")}
    message = refused(tmp_path / "store", *(f"{name}={value}" for name, value in given.items()))
    assert re.search(says, message), message


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 18, "drop_last": False, "local_epochs": 1},  # a last batch of 2
        {"batch_size": 20, "drop_last": False, "local_epochs": 1},  # whole batches
        {"batch_size": 19, "local_epochs": 1},  # the last batch is dropped
        {"batch_size": 32, "local_epochs": 1},  # small clients fill their batches
        {"batch_size": 19, "drop_last": False, "local_epochs": 1, "norm": "ln"},
        {"batch_size": 19, "drop_last": False, "local_epochs": 1, "norm": "fbn"},  # over the batches of a round
    ],
)
def test_batches_that_suffice_are_accepted(tmp_path: Path, fields: dict[str, Any]) -> None:
    dataset = DATASETS.parse(archive(tmp_path / "a.npz", EVEN, [0, 1, 2, 3]))
    base = {"dataset": dataset, "norm": "bn", "partition": "iid", "clients": 2}
    assert list(misfits([parse_experiment(base | fields)], dataset, load(dataset))) == []


def test_a_client_without_a_row_is_refused(tmp_path: Path) -> None:
    lists = tmp_path / "clients.json"
    lists.write_text(json.dumps({"train": [[0, 1], [], [2]]}))
    with pytest.raises(UserError, match=f"cannot read the partition {lists}: train, client 1: it has no row"):
        parse_experiment({"partition": f"given:{lists}", "clients": 3})
    lists.write_text(json.dumps({"train": [[0, 1], [40]]}))
    dataset = archive(tmp_path / "a.npz", EVEN, [0, 1, 2, 3])
    message = refused(tmp_path / "store", f"dataset={dataset}", f"partition=given:{lists}", "clients=2")
    assert message.endswith(f"{lists}: train has row 40, the set ends at 39")


def test_finished_runs_are_no_problem(tmp_path: Path) -> None:
    """A store keeps what an earlier version computed on such data."""
    dataset = DATASETS.parse(archive(tmp_path / "a.npz", [1, 2] * 10, [1, 2]))
    given = parse_experiment({"dataset": dataset, "partition": "iid", "clients": 2, "rounds": 10})
    store = tmp_path / "store"
    with pytest.raises(UserError, match="no images of class 0"):
        resolve_data([given], store, None, "data")
    known = given.having(dataset=dataset.holding(load(dataset).fingerprint))
    finish(Store(store), known, 0.5)
    assert [one.run_id for one in resolve_data([given], store, None, "data").experiments] == [known.run_id]


def test_a_sweep_draws_each_partition_once_and_checks_a_known_data_set_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    monkeypatch.setattr(preflight, "client_sizes", lambda *a: drawn.append(a) or shards.client_sizes(*a))
    monkeypatch.setattr(preflight, "_repeat", lambda *_: pytest.fail("config has checked that"))
    partition = parse_experiment({"partition": "dirichlet:0.5"}).partition
    fields = {"partition": partition, "dataset": "digits"}
    sweep = [parse_experiment({**fields, "seed": seed, "lr": lr}) for seed in range(2) for lr in (0.1, 0.2, 0.3)]
    dataset: Any = sweep[0].dataset
    assert list(misfits(sweep, dataset, load(dataset))) == []
    assert len(drawn) == 2
