from __future__ import annotations

import json
import os
import re
import socket
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.curves import sparklines
from flbench.cli.numbers import percent
from flbench.cli.screen import screen
from flbench.cli.sweep_status import SweepStatus
from flbench.errors import StoreUnusable
from flbench.progress import STATES, Progress
from flbench.store import CancelMark, Heartbeat, Lease, Store, encode_plan, strict_json
from flbench.sweeps import load_sweep
from tests.faults.stub import execute, experiments, undisturbed
from tests.report.stores import FORGOTTEN, forget_norm

SPEC = "version: 1\nname: toy\nbase: {rounds: 20, eval_every: 5}\naxes: {lr: [0.01, 0.101, 0.2, 0.3]}\nseeds: [0]\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A sweep with a run in each state, and one run beside it."""
    monkeypatch.setenv("STUB_PAUSE", "0")
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    (tmp_path / "toy.yaml").write_text(SPEC)
    sweep = load_sweep(tmp_path / "toy.yaml")
    store = Store(tmp_path / "store")
    directory = store.sweeps / sweep.name / sweep.spec_hash
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
    head, row, single, _, running, _, cell, kind, failure, foot = result.stdout.splitlines()
    assert head.split() == ["sweep", "runs", "done", "running", "pending", "failed", "rounds"], (
        "none is diverged, or lost"
    )
    assert row.split() == ["toy", "4", "1", "1", "1", "1", "25/80"]
    assert single.split() == ["single", "runs", "1", "1", "–", "–", "–", "20/20"], "of `flbench run`"
    assert "fedavg none lr=0.2 s0" in running
    assert re.search(rf"5/20 +25.0 % +█ +1 +{socket.gethostname()}:{os.getpid()} +", running)
    accuracies = [record["acc"] for record in undisturbed(experiments(1)[0])]
    _, (line,) = sparklines([accuracies])
    assert cell.split() == ["fedavg", "none", "lr=0.01", "1/1", *percent(accuracies[-1]).split(), line]
    assert kind.startswith("1 oom, the last at 20")
    assert "fedavg none lr=0.101 s0: oom: MemoryError (log: " in failure
    assert foot == f"0 workers alive, store: {store.root}"


def test_single_runs_are_counted_and_shown_while_they_run(store: Store) -> None:
    single = experiments(1, norm="ln", lr=0.5)[0]
    assert store.claim(single, Lease.here()) is not None
    found = json.loads(status("--json").stdout)
    assert (found["single"]["runs"], found["single"]["done"], found["single"]["running"]) == (2, 1, 1)
    assert [one["run_id"] for one in found["single"]["active"]] == [single.run_id]
    assert "fedavg ln lr=0.5 s0" in status().stdout
    assert "single runs" not in status("toy").stdout
    assert "single" not in json.loads(status("toy", "--json").stdout)
    done = experiments(1, norm="ln")[0]
    assert store.run(done.run_id).supersede()
    found = json.loads(status("--json").stdout)["single"]
    assert (found["pending"], found["rounds_done"], found["rounds_total"]) == (1, 0, 40), "it begins again"
    forget_norm(store, done)
    result = status()
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2] == f"left out: {FORGOTTEN}"
    found = json.loads(status("--json").stdout)["single"]
    assert (found["runs"], found["problem"]) == (1, f"left out: {FORGOTTEN}")


def test_workers_of_other_machines_are_judged_by_their_heartbeats(store: Store) -> None:
    """The worker is on another host, in a SLURM job: its lease says who, the age of its heartbeat whether it lives."""
    experiment = load_sweep(store.root.parent / "toy.yaml").experiments[3]
    there = {"host": "node7", "boot_id": "another", "slurm_job": "4711", "token": "elsewhere"}
    lease = Lease(**{**Lease.here().to_json(), **there})
    assert store.claim(experiment, lease) is not None
    with Heartbeat(store.workers, lease, "toy/x"):
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
    directory = store.sweeps / "damaged/abc"
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_text("{")
    result = status()
    assert result.exit_code == 4
    assert f"{directory}/plan.jsonl: the plan cannot be read" in result.stdout
    assert "1 oom, the last at 20" in result.stdout
    first, second = json.loads(status("--json").stdout)["sweeps"]
    assert "cannot be read" in first["problem"]
    assert (second["problem"], second["runs"]) == (None, 4)


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
    assert str(status("tiy").exception).endswith("did you mean 'toy'? there are: toy")
    assert isinstance(status("--store", "none").exception, StoreUnusable) and not Path("none").exists()


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
    result = status("--watch")
    assert result.exit_code == 0
    assert looks == [2.0]
    first, second = result.stdout.split("\n\n")
    assert ("25/80" in first, "60/80" in second) == (True, True), "one after the other where there is no terminal"


def test_watch_does_not_wait_for_cancelled_sweeps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one running run ends; pending runs stay as they are."""
    (directory,) = store.sweep_dirs()
    CancelMark(store.sweeps / f"toy/{directory.name}").put("me")
    assert json.loads(status("--json").stdout)["sweeps"][0]["cancelled"] is True

    def sleep(seconds: float) -> None:
        (attempt,) = store.run(load_sweep(store.root.parent / "toy.yaml").experiments[2].run_id).attempts()
        (attempt.path / "exit.json").write_text('{"kind": "interrupted"}')

    monkeypatch.setattr("flbench.cli.status.time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
    result = status("--watch")
    rows = [line for line in result.stdout.splitlines() if line.startswith("toy (cancelled)")]
    assert [row.split()[2:] for row in rows] == [["4", "1", "1", "1", "1", "25/80"], ["4", "1", "2", "1", "25/80"]]


def drawn(store: Store, monkeypatch: pytest.MonkeyPatch, width: int, *arguments: str) -> list[str]:
    """What a terminal of that width shows in the end; nothing is beyond its edge."""
    file = StringIO()
    console = Console(width=width, force_terminal=True, no_color=True, file=file)
    monkeypatch.setattr("flbench.cli.screen.wide_console", lambda: console)
    monkeypatch.delenv("TERM", raising=False)
    assert status(*arguments).exit_code == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).splitlines()


def test_eighty_columns_show_the_main_columns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(store, monkeypatch, 80)
    tables = lines[: next(number for number, line in enumerate(lines) if "oom" in line)]
    assert max(map(len, tables)) <= 80
    assert tables[3].split() == ["running", "round", "accuracy", "from", "20", "to", "25", "%"]
    running = load_sweep(store.root.parent / "toy.yaml").experiments[2]
    assert tables[4].startswith(f"{running.run_id[:8]}  fedavg none lr=0.2 s0")
    assert "attempt" in "".join(drawn(store, monkeypatch, 200))


def test_every_state_fits_into_eighty_columns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "states", dict.fromkeys(STATES, 12345))
    monkeypatch.setattr(Progress, "share", 0.1)
    head, row, *_ = drawn(store, monkeypatch, 80)
    assert head.split() == ["sweep", "runs", *STATES, "rounds"]
    assert row.split() == ["toy", "4", *["12345"] * 7, "10.0", "%"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 10**12, "eval_every": 1}, "rounds: expected a whole number from 0 to 10000000, got 1000000000000"),
        ({"rounds": 10**7, "eval_every": 1}, "eval_every: every 1 of 10,000,000 rounds is more than the 100,000"),
        ({"rounds": "x"}, "rounds: expected a whole number"),
        ({"eval_every": 0}, "eval_every: expected a whole number from 1"),
        ({"probes": 3}, "probes: expected a list, got 3"),
    ],
)
def test_an_oversized_plan_does_not_hide_the_others(store: Store, change: dict[str, Any], says: str) -> None:
    (one,) = experiments(1, norm="fn")
    directory = store.sweeps / "endless/abc"
    directory.mkdir(parents=True)
    entry = {"run_id": one.run_id, "cell_id": one.cell_id, "experiment": {**one.to_json(), **change}}
    (directory / "plan.jsonl").write_bytes(strict_json.join_lines([entry]))
    result = status()
    assert result.exit_code == StoreUnusable.exit_code
    named = [line for line in result.stdout.splitlines() if f"{directory}/plan.jsonl" in line]
    assert len(named) == 1
    assert f"the plan cannot be read (run {one.run_id}: {says}" in named[0]
    assert re.search(r"^toy +4 ", result.stdout, re.MULTILINE)
    for arguments in (["logs", "toy"], ["cancel", "toy"], ["retry", "toy"], ["gc", "--dry-run"], ["show", "methods"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0, arguments
    for arguments in (["verify"], ["logs", "endless"], ["retry", "endless"]):
        other = CliRunner().invoke(app, arguments)
        assert other.exit_code in (1, StoreUnusable.exit_code), (arguments, other.output)
        assert other.exception is None or isinstance(other.exception, (SystemExit, StoreUnusable))


def test_plans_of_one_name_are_shown_with_their_hashes(store: Store) -> None:
    (directory,) = store.sweep_dirs()
    other = store.sweeps / "toy/0123456789abcdef"
    other.mkdir(parents=True)
    (other / "plan.jsonl").write_bytes((directory / "plan.jsonl").read_bytes())
    names = [line.split()[0] for line in status().stdout.splitlines() if line.startswith("toy/")]
    assert names == [f"toy/{digits[:4]}" for digits in sorted(("0123456789abcdef", directory.name))]
    (again,) = json.loads(status(names[0], "--json").stdout)["sweeps"]
    assert again["spec_hash"].startswith(names[0].partition("/")[2]), "what is shown can be typed"


def test_a_watched_terminal_is_drawn_in_place_and_keeps_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=100, force_terminal=True, file=(file := StringIO()))
    monkeypatch.setattr("flbench.cli.screen.wide_console", lambda: console)
    monkeypatch.delenv("TERM", raising=False)
    with screen(redraws=True) as (_, show):
        show(["first", "line"])
        show(["second"])
    text = file.getvalue()
    assert text.index("first") < text.index("\x1b[1A") < text.index("second"), "what was there is gone over again"
    assert text.endswith("second\n")


def test_remaining_time_follows_from_recorded_times(store: Store) -> None:
    """One read is enough: the finished run took 1 s for 20 rounds, and a worker is alive on the sweep."""
    (directory,) = store.sweep_dirs()
    assert "left" not in status().stdout.splitlines()[0], "no worker is alive"
    with Heartbeat(store.workers, Lease.here(), f"toy/{directory.name}"):
        row = status().stdout.splitlines()[1]
        (sweep,) = json.loads(status("--json").stdout)["sweeps"]
    # 80 rounds, 25 done, 20 of the failed run given up.
    assert row.endswith("20 rounds/s  1.8 s")
    assert (sweep["rounds_per_second"], sweep["seconds_left"]) == (20.0, 1.8)


def test_no_remaining_time_is_shown_without_workers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds were seen to end since the first read, and then the workers ended."""
    (directory,) = store.sweep_dirs()
    now = [0.0]
    monkeypatch.setattr("flbench.cli.sweep_status.time", SimpleNamespace(monotonic=lambda: now[0]))
    one = SweepStatus(store, directory)
    one.update(1)
    (attempt,) = store.run(load_sweep(store.root.parent / "toy.yaml").experiments[2].run_id).attempts()
    attempt.metrics_path.write_text('{"round": 15, "acc": 0.5}\n')
    now[0] = 2.0
    one.update(1)
    # 80 rounds, 20 + 15 done, 20 of the failed run given up.
    assert (one.rounds_per_second, one.seconds_left) == (5.0, 5.0)
    (attempt.path / "exit.json").write_text('{"kind": "interrupted"}')
    one.update(0)
    assert (one.rounds_per_second, one.seconds_left) == (None, None)
