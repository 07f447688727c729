"""Stores with damaged, unreadable and read-only files: every command handles the sound runs and names the others."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import StoreUnusable, UserError
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Lease, Store, files
from tests.faults.disks import ReadOnly
from tests.faults.stub import orchestrate, write_toy_plan
from tests.fuzz.mutations import bind_socket
from tests.limits import time_limit
from tests.report.stores import claim, experiment, fail, finish
from tests.samples import fast


@pytest.fixture(autouse=True)
def no_command_hangs() -> Iterator[None]:
    with time_limit(120):
        yield


def cli(*arguments: str) -> Any:
    """Run a command, and fail on any exception except a message to the user."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, UserError | SystemExit), result.exc_info
    return result


PLAN = [experiment(seed=seed) for seed in range(3)]
DONE, FAILED, OTHER = PLAN


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Create a plan of three runs: done, failed, done."""
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    write_toy_plan(store, PLAN)
    finish(store, DONE)
    attempt = claim(store, FAILED)
    attempt.adopt(None)
    attempt.record({"round": 10, "acc": 0.5})
    attempt.describe({"python": "3.11"})
    attempt.end("error", "the toy is broken")
    finish(store, OTHER)
    return store


def directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff{[")


def other_types(path: Path) -> None:
    names = "kind message time round token host pid slurm_restart observed rounds python by"
    path.write_text(json.dumps({"schema": 1, **{name: [{"x": 1}] for name in names.split()}}) + "\n")


def huge_numbers(path: Path) -> None:
    path.write_text('{"python": 1e400, "round": 1e400, "kind": "ok", "pid": 1e400}\n')


#: What a file is replaced by.
DAMAGES = (directory, fifo, bind_socket, loop, garbage, other_types, huge_numbers)

#: The files of a run except for the checkpoint.
NAMES = (
    "experiment.json",
    "attempts/0001/lease.json",
    "attempts/0001/exit.json",
    "attempts/0001/environment.json",
    "attempts/0001/metrics.jsonl",
    "attempts/0001/log.txt",
    "attempts/0001/cancel.json",
    "results/00000020.json",
)

COMMANDS = (
    *("status --json", "status", "status --html page.html", "logs toy", "retry toy", "runs --json", "runs"),
    *("gc --yes", "export out.parquet", "report --json", "verify"),
)


def put(damage: Callable[[Path], None], path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    damage(path)


#: Damages of finished and of failed runs; the others are slow.
SAMPLE = ("directory of finished", "other_types of failed", "bind_socket of finished")
DAMAGED = [(damage, done) for damage in DAMAGES for done in (True, False)]


@pytest.mark.parametrize(
    "case", fast(DAMAGED, *SAMPLE, name=lambda case: f"{case[0].__name__} of {'finished' if case[1] else 'failed'}")
)
def test_damaged_files_do_not_hide_other_runs(store: Store, case: tuple[Callable[[Path], None], bool]) -> None:
    """A run for each kind of file, with that file damaged, beside a sound run."""
    damage, done = case
    damaged = [experiment(seed=100 + seed) for seed in range(len(NAMES))]
    write_toy_plan(store, [OTHER, *damaged])
    for run, name in zip(damaged, NAMES, strict=True):
        if done:
            finish(store, run)
        else:
            fail(store, run, "error")
        put(damage, store.run(run.run_id).path / name)
    for command in COMMANDS:
        result = cli(*command.split())
        assert result.exit_code == int(command == "verify"), (command, result.output)
        if command.startswith("status --json"):
            sweeps = json.loads(result.stdout)["sweeps"]
            assert sorted(sweep["runs"] for sweep in sweeps) == [3, 1 + len(NAMES)]
            assert all(sweep["done"] >= 1 for sweep in sweeps)
    for run in damaged:
        shown = cli("show", "run", run.run_id)
        assert shown.exception is None or isinstance(shown.exception, UserError), (run.run_id, shown.exception)
    assert store.run(OTHER.run_id).state(OTHER).status == "done"


@pytest.mark.parametrize("damage", [directory, fifo, garbage])
@pytest.mark.parametrize("name", ["sweeps/toy/*/plan.jsonl", "format.json", "workers/*/lease.json"])
def test_a_damaged_file_of_the_store_is_named(store: Store, name: str, damage: Callable[[Path], None]) -> None:
    worker = store.workers / "somebody"
    worker.mkdir()
    (worker / "lease.json").write_text(json.dumps(Lease.here().to_json()))
    (path,) = store.root.glob(name)
    put(damage, path)
    for command in (*COMMANDS, "cancel toy", "logs 0", "sync"):
        cli(*command.split())
    if name.startswith("sweeps"):
        result = cli("status")
        assert result.exit_code == StoreUnusable.exit_code
        assert "plan.jsonl: the plan cannot be read" in result.stdout
        refused = cli("gc", "--orphans", "--yes")
        assert isinstance(refused.exception, StoreUnusable), "the plan may contain any run"


def test_an_attempts_name_must_be_a_plain_number(store: Store) -> None:
    attempts = store.run(DONE.run_id).path / "attempts"
    (attempts / "0001/checkpoint").mkdir()
    for name in ("²", "1e3", "-1", "0x1", "٣"):
        (attempts / name).mkdir()
        (attempts / f"0001/checkpoint/0{name}-0123456789abcdef.pt").touch()
    for command in COMMANDS:
        assert cli(*command.split()).exit_code <= 1
    assert [attempt.number for attempt in store.run(DONE.run_id).attempts()] == [1]


def test_a_lease_with_wrong_types_is_ignored(tmp_path: Path) -> None:
    path, sound = tmp_path / "lease.json", Lease.here().to_json()
    fields = ("pid", "slurm_restart", "token", "host", "slurm_job", "started", "boot_id")
    for field, value in product(fields, ("x", -1, 2**40, [1], {"x": 1}, None, True)):
        path.write_text(json.dumps({**sound, field: value}))
        lease = Lease.read(path)
        fits = type(value) is type(sound[field]) or (field == "slurm_job" and value in ("x", None))
        assert lease is None or (fits and getattr(lease, field) == value), (field, value)
        assert lease is None or 0 < lease.pid < 2**31, (field, value)


@pytest.fixture
def unreadable(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a file of the first run unreadable, even for root."""

    def forbid(name: str) -> Path:
        path = store.run(DONE.run_id).path / name
        opened = os.open

        def refuse(file: Any, *arguments: Any, **options: Any) -> int:
            if os.fspath(file) == os.fspath(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
            return opened(file, *arguments, **options)

        monkeypatch.setattr(os, "open", refuse)
        return path

    return forbid


@pytest.mark.parametrize("name", ["results/00000020.json", "attempts/0001/exit.json"])
def test_an_unreadable_file_fails_only_its_run(store: Store, name: str, unreadable: Callable[[str], Path]) -> None:
    if "exit" in name:
        (store.run(DONE.run_id).path / "results/00000020.json").unlink()
    says = f"{unreadable(name)}: Permission denied"
    result = cli("status", "--json")
    (sweep,) = json.loads(result.stdout)["sweeps"]
    assert (sweep["done"], sweep["failed"]) == (1, 2)
    messages = {failure["run_id"]: (failure["state"], failure["message"]) for failure in sweep["failures"]}
    assert messages[DONE.run_id] == ("unreadable", says)
    assert f"{DONE.run_id} cannot be read: {says}" in cli("logs", "toy").stdout
    retried = cli("retry", "toy")
    assert f"left out: run {DONE.run_id} cannot be read: {says}" in retried.stderr
    assert "1 run may be tried again" in retried.stdout
    if "results" in name:
        exported = cli("export", "out.parquet")
        assert f"left out: run {DONE.run_id}: {says}" in exported.stderr
        assert "1 of " in exported.stdout or "1 run" in exported.stdout
    else:
        assert f"left alone: run {DONE.run_id} cannot be read: {says}" in cli("gc", "--yes").stderr
    shown = {run.run_id: (run.state, run.failure) for run in collect(StoreSource(store), PLAN).runs}
    assert shown[DONE.run_id] == ("failed", "unreadable")
    assert shown[OTHER.run_id] == ("done", None)


def test_a_sweep_with_an_unreadable_run_executes_the_others(
    store: Store, unreadable: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unreadable("results/00000020.json")
    new = experiment(seed=7, lr=0.5)
    outcome = orchestrate(store, [DONE, OTHER, new])
    assert (outcome.exit_code, outcome.progress.done) == (1, 2)
    (failure,) = outcome.failures
    assert str(path) in failure.state.message
    assert len(store.run(DONE.run_id).attempts()) == 1, "the run may be done, so no attempt is made"
    monkeypatch.undo()
    assert orchestrate(store, [DONE, OTHER, new]).exit_code == 0


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


READ_ONLY = ("cancel toy", "retry toy", "import runs.parquet", "run norm=gn rounds=1", "sync --mode offline")


@pytest.mark.parametrize("command", READ_ONLY)
@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.EIO, errno.ENOSPC])
def test_a_store_that_cannot_be_written_is_named(
    store: Store, command: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("export", "runs.parquet").exit_code == 0
    (store.run(OTHER.run_id).path / "results/00000020.json").unlink()  # so that a run can be imported
    before = files_below(store.root)
    monkeypatch.setattr(files, "disk", ReadOnly(error))
    result = cli(*command.split())
    assert isinstance(result.exception, StoreUnusable) or (command.startswith("sync") and result.exit_code in (0, 1))
    if isinstance(result.exception, StoreUnusable):
        assert f"the store {store.root} cannot be used: " in str(result.exception)
        assert os.strerror(error) in str(result.exception)
    assert files_below(store.root) == before


def test_a_read_only_store_can_be_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_below(store.root)
    monkeypatch.setattr(files, "disk", ReadOnly(errno.EROFS))
    for command in ("status", "logs toy", "gc --dry-run", "report --json", "verify"):
        result = cli(*command.split())
        assert result.exit_code == 0, (command, result.output)
    assert files_below(store.root) == before


def test_an_export_to_a_full_disk_is_a_message(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "disk", ReadOnly(errno.ENOSPC))
    result = cli("export", "out.parquet")
    assert type(result.exception) is UserError
    assert "out.parquet: No space left on device" in str(result.exception)
    assert not list(store.root.parent.glob("*parquet*"))


def test_a_store_must_be_a_directory(store: Store, tmp_path: Path) -> None:
    assert cli("export", "runs.parquet").exit_code == 0
    for number, make in enumerate((loop, fifo, garbage, lambda path: path.symlink_to("nowhere"))):
        make(tmp_path / str(number))
        for command in ("status", "run rounds=1", "import runs.parquet", "gc"):
            result = cli(*command.split(), "--store", str(tmp_path / str(number)))
            assert isinstance(result.exception, StoreUnusable), (number, command)
