"""The partition ``given``: the rows of a file, its content in the run id, and the files that are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.config import parse_experiment
from flbench.errors import UserError
from flbench.registry import PARTITIONS, InvalidComponent
from tests.data.test_partition import TEST, TRAIN, counts, parted
from tests.limits import time_limit

LISTS = [list(range(0, 300, 2)), [1429, 7, 1], list(range(700, 900))]


def write(path: Path, **lists: Any) -> str:
    path.write_text(json.dumps(lists))
    return f"given:{path}"


def test_the_rows_of_the_file_are_used(tmp_path: Path) -> None:
    shards = parted(write(tmp_path / "a.json", train=LISTS, test=[[3], [], [5, 4]]), clients=3)
    assert [rows.tolist() for rows in shards.train] == [sorted(rows) for rows in LISTS]
    assert [rows.tolist() for rows in shards.test] == [[3], [], [4, 5]]
    held = parted(f"given:{tmp_path / 'a.json'}", clients=3, val_fraction=0.2)
    for client, rows in enumerate(LISTS):
        assert len(held.val[client]) == len(rows) // 5
        assert sorted([*held.val[client], *held.train[client]]) == sorted(rows)


def test_the_servers_rows_are_taken_from_the_lists(tmp_path: Path) -> None:
    shards = parted(write(tmp_path / "a.json", train=LISTS), clients=3, server_fraction=0.1)
    for client, rows in enumerate(LISTS):
        assert shards.train[client].tolist() == sorted({*rows} - {*shards.server.tolist()})
    assert sum(map(len, shards.train)) < sum(map(len, LISTS))


def test_the_test_set_follows_the_training_rows(tmp_path: Path) -> None:
    shards = parted(write(tmp_path / "a.json", train=LISTS), clients=3)
    exact = counts(shards.train, TRAIN) * 35 / 143
    assert np.abs(counts(shards.test, TEST) - exact).max() < 1
    assert len({*np.concatenate(shards.test).tolist()}) == sum(map(len, shards.test))


def test_the_content_and_not_the_place_identifies_a_run(tmp_path: Path) -> None:
    fields = {"dataset": "digits", "clients": 3}
    first, same, other = (
        parse_experiment({**fields, "partition": write(tmp_path / name, train=lists)})
        for name, lists in (("a.json", LISTS), ("b.json", [rows[::-1] for rows in LISTS]), ("c.json", LISTS[::-1]))
    )
    assert first.run_id == same.run_id != other.run_id
    stored = parse_experiment(first.to_json())
    write(tmp_path / "a.json", train=LISTS[::-1])
    assert parse_experiment(first.to_json()).run_id == stored.run_id == first.run_id  # as planned
    with pytest.raises(UserError, match="holds other rows than the experiment names"):
        parted(first.to_json()["partition"], clients=3)
    (tmp_path / "a.json").unlink()
    assert parse_experiment(first.to_json()).run_id == first.run_id


def test_clients_and_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    text = write(tmp_path / "a.json", train=LISTS)
    with pytest.raises(UserError, match="the file has 3 clients; use clients: 3"):
        parse_experiment({"dataset": "digits", "clients": 4, "partition": text})
    with pytest.raises(UserError, match="train has row 1430, the set ends at 1429"):
        parted(write(tmp_path / "b.json", train=[[0], [1430]]), clients=2)
    with pytest.raises(UserError, match="test has row 350, the set ends at 349"):
        parted(write(tmp_path / "c.json", train=[[0]], test=[[350]]), clients=1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Expecting value"),
        ("[]", "expected {"),
        ('{"test": [[0]]}', "expected {"),
        ('{"train": [[0]], "valid": [[1]]}', "expected {"),
        ('{"train": []}', "a list with a list of rows for each client"),
        ('{"train": [0, 1]}', "a list with a list of rows for each client"),
        ('{"train": [[0], [1.0]]}', "train, client 1: expected a row number from 0, got 1.0"),
        ('{"train": [[true]]}', "got True"),
        ('{"train": [[-1]]}', "got -1"),
        ('{"train": [[0], []]}', "train, client 1: it has no row"),
        ('{"train": [[0, 1], [1]]}', "train, client 1: row 1 is there twice"),
        ('{"train": [[0]], "test": [[0], [1]]}', "train has 1 clients and test 2"),
        ("[" * 100_000, "recursion"),
        ('{"train": [[' + "9" * 30 + "]]}", "expected a row number"),
        ('{"train": [[' + "9" * 9999 + "]]}", "cannot read the partition"),
    ],
)
def test_unfit_files_are_refused(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InvalidComponent, match=says):
        PARTITIONS.parse(f"given:{tmp_path / 'a.json'}")


def test_missing_and_irregular_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, says in (("none", "No such file"), ("fifo", "FIFO"), (".", "directory"), ("bytes", "cannot read")):
        with time_limit(60), pytest.raises(InvalidComponent, match=says):
            PARTITIONS.parse(f"given:{tmp_path / name}")
