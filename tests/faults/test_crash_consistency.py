"""A small sweep with one fault at each of the store's writes in turn, then resumed on a sound disk.

After every fault the final store equals the store of a sweep without faults, except for times.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flbench.errors import UserError
from flbench.store import Store, claims, files, leases
from flbench.store.files import Disk
from flbench.worker import environment, main
from tests.faults.disks import Counting, Failing, Full, Killing, Losing, in_child
from tests.faults.stub import OneByOne, experiments, undisturbed, write_toy_plan

#: With an evaluation every second round and a checkpoint every fourth, each kind of write occurs more than once.
ROUNDS = 6
SEEDS = 2
PLAN = experiments(SEEDS, rounds=ROUNDS, eval_every=2)

#: Fields of a result that may differ: places and times.
APART = {"file", "attempt", "seconds", "published", "environment"}


def sweep(root: Path) -> int:
    """Plan and execute in one process, with every write of a sweep."""
    try:
        plan = write_toy_plan(Store(root), PLAN)
    except UserError as error:
        return error.exit_code
    return main([str(root), plan], load=lambda options: OneByOne())


@dataclass
class Faulty:
    """Runs sweeps with one fault each, each in a store of its own."""

    folder: Path
    writes: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def disturb(self, disk: Disk, name: str) -> tuple[Path, int | None]:
        """Sweep on a faulty disk; return the store and the exit code."""
        root = self.folder / f"{next(self.numbers)}-{name}"
        return root, in_child(partial(sweep, root), disk)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    environment("cpu")  # calls git once, for all child processes
    patch = pytest.MonkeyPatch()
    patch.setenv("STUB_PAUSE", "0")
    patch.setattr(claims, "AT_RISK", 0.0)  # with every wait for the disk
    counting, folder = Counting(), tmp_path_factory.mktemp("faulty")
    with pytest.MonkeyPatch.context() as replaced:
        replaced.setattr(files, "disk", counting)
        replaced.setattr("signal.signal", lambda *_: None)
        assert sweep(folder / "calm") == 0
    yield Faulty(folder, counting.calls)
    patch.undo()


def content(store: Store) -> dict[str, Any]:
    """Return the content of a store without times and places."""
    found: dict[str, Any] = {}
    for directory in store.sweep_dirs():
        found.update({path.name: path.read_bytes() for path in directory.iterdir() if path.name[0] != "."})
    for run_id in store.run_ids():
        run = store.run(run_id)
        (result,) = run.results()
        facts = {key: value for key, value in asdict(result).items() if key not in APART}
        checkpoint = run.sound_checkpoints(run.attempts()[-1])[0]
        found[run_id] = facts, run.metrics(result), checkpoint.path.name, run.experiment().to_json()
    return found


def some(writes: int, every: int) -> range:
    return range(1, writes + 1, every)


def check_kills(faulty: Faulty, numbers: range, *, torn: bool) -> None:
    for number in numbers:
        root, code = faulty.disturb(Killing(number, torn=torn), f"kill-{torn}-{number}")
        assert code == -signal.SIGKILL, number
        try:
            resume_and_check(root)
        except AssertionError as error:
            raise AssertionError(f"killed at write {number} of {faulty.writes}") from error


def resume_and_check(root: Path) -> None:
    """Sweep again on a sound disk: the store equals one without faults, and no finished run is executed again."""
    assert in_child(partial(sweep, root)) == 0
    store = Store(root)
    for experiment in PLAN:
        run = store.run(experiment.run_id)
        result = run.result_for(experiment)
        assert result is not None
        assert run.metrics(result) == undisturbed(experiment)
        assert result.attempt == run.attempts()[-1].number <= 2
    assert content(store) == content(Store(root.parent / "calm"))


@pytest.mark.slow
def test_killed_at_some_writes(faulty: Faulty) -> None:
    check_kills(faulty, some(faulty.writes, 11), torn=False)


@pytest.mark.nightly
@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_every_write(faulty: Faulty, torn: bool) -> None:
    check_kills(faulty, some(faulty.writes, 1), torn=torn)


def check_faults(faulty: Faulty, numbers: range, disk: Callable[[int], Disk], name: str) -> None:
    """The worker exits with 0 (it tolerated the fault) or 4 (the store cannot be used), and the next sweeps finish."""
    for number in numbers:
        root, code = faulty.disturb(disk(number), f"{name}-{number}")
        try:
            assert code in (0, 4)
            check_ends(root)
            assert in_child(partial(sweep, root)) == 0
            assert in_child(partial(sweep, root)) == 0
            resume_and_check(root)
        except AssertionError as error:
            raise AssertionError(f"{name} at write {number} of {faulty.writes}: exit code {code}") from error


def check_ends(root: Path) -> None:
    """Check that no ended attempt appears as running."""
    if Store.exists(root) and (root / "runs").is_dir():
        store = Store(root)
        states = [store.run(experiment.run_id).state(experiment) for experiment in PLAN]
        assert all(state.status != "running" for state in states)
        assert all(state.failures <= 1 for state in states)


def eio(number: int) -> Disk:
    return Failing(number, errno.EIO)


def eio_forever(number: int) -> Disk:
    return Failing(number, errno.EIO, forever=True)


FAULTS = {"eio": eio, "eio-forever": eio_forever, "lost": Losing}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_disk_fails_at_some_writes(faulty: Faulty, name: str) -> None:
    check_faults(faulty, some(faulty.writes, 19), FAULTS[name], name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_disk_fails_at_every_write(faulty: Faulty, name: str) -> None:
    check_faults(faulty, some(faulty.writes, 1), FAULTS[name], f"every-{name}")


class PowerCut(Counting):
    """Loses at its end what was written without waiting for the disk; names stay, as on ext4."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[int] = set()

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.synced.add(os.fstat(descriptor).st_ino)

    def cut(self, root: Path) -> None:
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.synced:
                os.truncate(path, 0)


@pytest.mark.parametrize("at_risk", [0.0, 30.0])
def test_power_cut(tmp_path: Path, faulty: Faulty, monkeypatch: pytest.MonkeyPatch, at_risk: float) -> None:
    """Results of attempts that waited for the disk stay; the others are noticed as damaged and computed again."""
    monkeypatch.setattr(claims, "AT_RISK", at_risk)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with monkeypatch.context() as replaced:
        replaced.setattr(files, "disk", disk := PowerCut())
        assert sweep(tmp_path / "store") == 0
    disk.cut(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "workers")
    monkeypatch.setattr(leases, "STALE", 0.0)  # no lease is left: the attempts' age decides
    states = [Store(tmp_path / "store").run(experiment.run_id).state(experiment) for experiment in PLAN]
    assert {state.status for state in states} == ({"lost"} if at_risk else {"done"})
    assert sweep(tmp_path / "store") == 0
    for experiment in PLAN:
        run = Store(tmp_path / "store").run(experiment.run_id)
        assert run.metrics(run.result_for(experiment)) == undisturbed(experiment)


def check_full(faulty: Faulty, numbers: range) -> None:
    """A run that ends on a full disk records this in reserved space; with free space, the sweep resumes."""
    recorded = 0
    for number in numbers:
        root, code = faulty.disturb(Full(number), f"full-{number}")
        assert code in (0, 4), number  # 0: only the last messages were missing
        store = Store(root) if Store.exists(root) else None
        begun = [store.run(experiment.run_id) for experiment in PLAN] if store else []
        for run, experiment in zip(begun, PLAN, strict=False):
            state = run.state(experiment)
            assert state.status in ("done", "failed", "pending"), (number, state)
            if state.status == "failed":
                recorded += 1
                assert (state.kind, state.user_fixable, state.failures) == ("disk_full", True, 1), number
                assert json.loads((run.attempts()[-1].path / "exit.json").read_bytes())["kind"] == "disk_full"
                run.reset_failures()  # as the next `flbench sweep` does
        resume_and_check(root)
    assert recorded


def test_disk_full_from_some_writes(faulty: Faulty) -> None:
    check_full(faulty, range(40, faulty.writes, 13))


@pytest.mark.nightly
def test_disk_full_from_every_write(faulty: Faulty) -> None:
    check_full(faulty, some(faulty.writes - 8, 1))


def test_disk_full_while_a_group_is_claimed(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a group is claimed, and the disk has no space for the claim of the second."""
    monkeypatch.setenv("STUB_GROUP", "2")
    check_full(faulty, range(44, 64))
