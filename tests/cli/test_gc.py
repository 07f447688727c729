from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.config import Experiment
from flbench.errors import UserError
from flbench.store import Attempt, Lease, Store, encode_plan
from tests.faults.stub import execute, experiments
from tests.report.stores import claim

HOURS = 3 * 3600


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("STUB_PAUSE", "0")
    return Store(tmp_path / "store")


def gc(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["gc", *arguments])


def removed(*arguments: str) -> dict[str, int]:
    raw = json.loads(gc("--json", "--yes", *arguments).stdout)
    return {kind: counted["number"] for kind, counted in raw["removed"].items() if counted["number"]}


def finish(store: Store, experiment: Experiment) -> Attempt:
    attempt = claim(store, experiment)
    execute(experiment, attempt, should_stop=lambda: False)
    attempt.end("ok")
    return attempt


def dead() -> Lease:
    return Lease(**{**Lease.here().to_json(), "pid": 2**22 + 1})


def age(path: Path) -> Path:
    """Make a file, or everything below a directory, some hours old."""
    then = time.time() - HOURS
    for one in [*path.rglob("*"), path]:
        os.utime(one, (then, then))
    return path


def listing(store: Store) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(store.root.rglob("*")) if path.is_file()}


def test_superseded_checkpoints_are_deleted(store: Store) -> None:
    (short,), (long,) = experiments(1, rounds=20), experiments(1, rounds=40)
    first, second = finish(store, short), finish(store, long)
    assert removed() == {"checkpoints": 1}
    assert first.checkpoint_files() == []
    assert [path.name[:8] for path in second.checkpoint_files()] == ["00000040"]
    assert gc("--dry-run").stdout == "nothing to remove\n"
    # The run can still be extended from there.
    (longer,) = experiments(1, rounds=60)
    assert claim(store, longer).checkpoints()[0].round == 40


def test_the_newest_sound_checkpoint_is_kept(store: Store) -> None:
    (short,), (long,) = experiments(1, rounds=20), experiments(1, rounds=40)
    first, second = finish(store, short), finish(store, long)
    (newest,) = second.checkpoint_files()
    newest.write_bytes(b"damaged")
    assert removed() == {"checkpoints": 1}
    assert not newest.exists()
    assert len(first.checkpoint_files()) == 1


def test_unfinished_and_running_runs_keep_all_checkpoints(store: Store) -> None:
    (one,), (long,) = experiments(1, rounds=20), experiments(1, rounds=40)
    finish(store, one)
    extension = claim(store, long)  # held by this very process
    extension.save_checkpoint(24, lambda file: file.write(b"x"))
    assert removed() == {}
    extension.end("interrupted")
    assert removed() == {"checkpoints": 1}  # the run has a result: what a new attempt begins with is the newest
    (other,) = experiments(1, norm="ln")
    for round in (4, 8):
        attempt = claim(store, other)
        attempt.save_checkpoint(round, lambda file: file.write(b"x"))
        attempt.end("interrupted")
    assert removed() == {}


def test_last_checkpoints_are_deleted_on_request(store: Store) -> None:
    attempt = finish(store, *experiments(1))
    before = attempt.run.results()
    age(store.root)
    assert removed("--last-checkpoints", "--orphans") == {"checkpoints": 1}
    assert attempt.run.results() == before
    assert attempt.run.metrics() == attempt.records() != []
    shutil.rmtree(store.workers)
    assert Store(store.root).run(attempt.run.run_id).state(*experiments(1)).status == "done"


def test_quarantine_and_old_staging(store: Store) -> None:
    attempt = finish(store, *experiments(1))
    store.quarantine.mkdir()
    (store.quarantine / "damaged.json").write_text("{")
    name = f".result.json.{'0' * 32}.tmp"
    old, new = attempt.path / name, store.workers / name
    old.write_text("half")
    new.write_text("half")
    staged = attempt.path.parent / f".0002.{'1' * 32}.tmp"
    staged.mkdir()
    (staged / "lease.json").write_text("{}")
    age(old)
    age(staged)
    assert removed() == {"quarantine": 1, "staging": 2}
    assert new.exists()
    assert not old.exists()
    assert not staged.exists()
    assert not store.quarantine.exists()


def test_heartbeats_of_dead_workers_are_deleted(store: Store) -> None:
    def worker(token: str, lease: Lease) -> Path:
        directory = store.workers / token
        directory.mkdir()
        (directory / "heartbeat").touch()
        (directory / "lease.json").write_text(json.dumps({**lease.to_json(), "token": token, "plan": "x"}))
        (directory / "log.txt").write_text(token if token == "logged" else "")
        return age(directory)

    living, gone, logged = worker("living", Lease.here()), worker("gone", dead()), worker("logged", dead())
    fresh = worker("fresh", dead())
    (fresh / "heartbeat").touch()
    assert removed() == {"workers": 5}
    assert sorted(path.name for path in living.iterdir()) == ["heartbeat", "lease.json", "log.txt"]
    assert not gone.exists()
    assert [path.name for path in logged.iterdir()] == ["log.txt"]
    assert (fresh / "lease.json").exists()


def test_the_end_of_a_worker_is_kept_while_a_run_needs_it(store: Store) -> None:
    lease = dead()
    (one,) = experiments(1)
    claim(store, one, lease)
    store.record_death(lease.token, {"kind": "signal", "message": "killed"})
    age(store.workers / lease.token)
    before = store.run(one.run_id).state(one)
    assert (before.status, before.kind) == ("failed", "signal")
    assert removed() == {}
    assert store.run(one.run_id).state(one) == before


def test_orphans_are_deleted_on_request_unless_they_are_finished(store: Store) -> None:
    finished, planned, orphan, live = experiments(4)
    directory = store.sweeps / "toy/abc"
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_bytes(encode_plan([planned]))
    finish(store, finished)
    for one in (planned, orphan):
        claim(store, one).end("oom")
    claim(store, live)
    age(store.root / "runs")
    assert removed() == {}
    assert removed("--orphans") == {"orphans": 1}
    assert {*store.run_ids()} == {finished.run_id, planned.run_id, live.run_id}


def test_gc_lists_what_it_would_delete_and_asks(store: Store) -> None:
    store.quarantine.mkdir()
    (store.quarantine / "damaged.json").write_bytes(b"x" * 2000)
    before = listing(store)
    dry = gc("--dry-run")
    assert dry.stdout == "       1     2.0 kB  damaged files that were set aside\n"
    asked = gc()
    assert isinstance(asked.exception, UserError)  # standard input is no terminal
    assert listing(store) == before
    assert gc("--yes").stdout.endswith("removed 1, freed 2.0 kB\n")
    assert listing(store).keys() < before.keys()


def test_links_are_not_followed(store: Store, tmp_path: Path) -> None:
    """Garbage that points out of the store is removed; what it points to is not."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    store.quarantine.mkdir()
    (store.quarantine / "link").symlink_to(outside)
    link = store.workers / f".x.{'0' * 32}.tmp"
    link.symlink_to(outside)
    age(outside)
    assert removed() == {"quarantine": 1, "staging": 1}
    assert (outside / "precious").read_text() == "mine"
