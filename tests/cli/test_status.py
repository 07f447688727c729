from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import StoreUnusable, UserError
from flbench.store import Lease, Store, encode_plan
from flbench.sweep import load_sweep
from tests.faults.stub import execute, experiments

SPEC = "version: 1\nname: toy\nbase: {rounds: 20, eval_every: 5}\naxes: {lr: [0.01, 0.101, 0.2, 0.3]}\nseeds: [0]\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A sweep with a run in each state, and one run beside it."""
    monkeypatch.setenv("STUB_PAUSE", "0")
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    (tmp_path / "toy.yaml").write_text(SPEC)
    sweep = load_sweep(tmp_path / "toy.yaml")
    store = Store(tmp_path / "store")
    directory = store.sweep_dir(sweep.name, sweep.spec_hash)
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_bytes(encode_plan(sweep.experiments))
    done, failed, running, _ = sweep.experiments
    for experiment in (done, *experiments(1, norm="ln")):
        attempt = store.claim(experiment, Lease.here())
        assert attempt is not None
        execute(experiment, attempt, should_stop=lambda: False)
        attempt.end("ok")
    attempt = store.claim(failed, Lease.here())
    assert attempt is not None
    attempt.log("Traceback")
    attempt.end("oom", "MemoryError")
    attempt = store.claim(running, Lease.here())
    assert attempt is not None
    attempt.record({"round": 5, "acc": 0.25})
    return store


def status(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["status", *arguments])


def test_table_running_and_failures(store: Store) -> None:
    result = status()
    assert result.exit_code == 0
    head, row, _, running, kind, failure, foot = result.stdout.splitlines()
    counts = dict(zip(head.split()[1:], row.split()[1:], strict=True))
    assert counts == {
        "runs": "4", "done": "1", "diverged": "–", "running": "1", "pending": "1",
        "failed": "1", "lost": "–", "rounds": "25/80", "left": "–",
    }  # fmt: skip
    assert "fedavg none lr=0.2 s0" in running
    assert "5/20" in running
    assert f"{socket.gethostname()}:{os.getpid()}" in running
    assert kind.startswith("1 oom, the last at 20")
    assert "fedavg none lr=0.101 s0: oom: MemoryError (log: " in failure
    assert foot == f"0 workers alive, 1 runs belong to no sweep, store: {store.root}"


def test_parts_of_a_plan_add_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(status("--json").stdout)
    monkeypatch.setattr("flbench.cli.survey.PART", 1)  # every run in a part of its own
    monkeypatch.setattr("flbench.cli.survey.usable_cores", lambda: 2)
    assert json.loads(status("--json").stdout) == whole
    assert [run["label"] for run in whole["sweeps"][0]["active"]] == ["fedavg none lr=0.2 s0"]


def test_another_machine_judges_by_the_heartbeat(store: Store) -> None:
    """The worker is on another host, in a SLURM job: its lease says who, the age of its heartbeat whether it lives."""
    experiment = load_sweep(store.root.parent / "toy.yaml").experiments[3]
    there = {"host": "node7", "boot_id": "another", "slurm_job": "4711", "token": "elsewhere"}
    lease = Lease(**{**Lease.here().to_json(), **there})
    assert store.claim(experiment, lease) is not None
    with store.heartbeat(lease, "toy/x"):
        heartbeat = store.workers / "elsewhere" / "heartbeat"
        os.utime(heartbeat, (time.time() - 30, time.time() - 30))
        raw = json.loads(status("toy", "--json").stdout)
        (active,) = [one for one in raw["sweeps"][0]["active"] if one["run_id"] == experiment.run_id]
        assert (active["host"], active["slurm_job"], active["attempt"]) == ("node7", "4711", 1)
        assert active["heartbeat_age"] == pytest.approx(30, abs=5)
        assert [(one["host"], one["plan"]) for one in raw["workers"]] == [("node7", "toy/x")]
        os.utime(heartbeat, (time.time() - 300, time.time() - 300))
        (sweep,) = json.loads(status("toy", "--json").stdout)["sweeps"]
    assert (sweep["running"], sweep["lost"], sweep["failed"]) == (1, 1, 1)
    assert {error["kind"]: error["runs"] for error in sweep["errors"]} == {"oom": 1, "lost": 1}


def test_a_damaged_plan_does_not_hide_the_others(store: Store) -> None:
    directory = store.sweep_dir("damaged", "abc")
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_text("{")
    result = status()
    assert result.exit_code == 4
    assert f"{directory}/plan.jsonl: the plan cannot be read" in result.stdout
    assert "1 oom, the last at 20" in result.stdout
    first, second = json.loads(status("--json").stdout)["sweeps"]
    assert "cannot be read" in first["problem"]
    assert (second["problem"], second["runs"]) == (None, 4)


def test_cancelled_is_said(store: Store) -> None:
    (directory,) = store.sweep_dirs()
    store.mark(f"toy/{directory.name}").put("me")
    assert f"toy/{directory.name} (cancelled)" in status().stdout
    assert json.loads(status("--json").stdout)["sweeps"][0]["cancelled"] is True


@pytest.mark.parametrize("name", ["toy", "toy.yaml"])
def test_one_sweep_by_name_or_file(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.root.parent)
    (sweep,) = json.loads(status(name, "--json").stdout)["sweeps"]
    assert (sweep["sweep"], sweep["runs"], sweep["done"], sweep["failed"]) == ("toy", 4, 1, 1)
    (active,) = sweep["active"]
    assert (active["state"], active["round"], active["acc"], active["pid"]) == ("running", 5, 0.25, os.getpid())
    (failure,) = sweep["failures"]
    assert (failure["state"], failure["message"]) == ("oom", "MemoryError")
    assert Path(failure["log"]).read_text().endswith("Traceback\n")


def test_name_that_is_not_there_lists_those_that_are(store: Store) -> None:
    result = status("tiy")
    assert isinstance(result.exception, UserError)
    assert str(result.exception).endswith("there are: toy")


def test_no_store_is_said_and_none_is_made(tmp_path: Path) -> None:
    result = status("--store", str(tmp_path / "none"))
    assert isinstance(result.exception, StoreUnusable)
    assert not (tmp_path / "none").exists()


def test_watch_ends_when_all_is_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        """Finish what is left while the command waits."""
        looks.append(seconds)
        for experiment in load_sweep(store.root.parent / "toy.yaml").experiments[2:]:
            run = store.run(experiment.run_id)
            for attempt in run.attempts():
                (attempt.path / "exit.json").write_text('{"kind": "interrupted"}')
            attempt = store.claim(experiment, Lease.here())
            assert attempt is not None
            execute(experiment, attempt, should_stop=lambda: False)
            attempt.end("ok")

    monkeypatch.setattr("flbench.cli.status.time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
    assert status("--watch").exit_code == 0
    assert looks == [2.0]
