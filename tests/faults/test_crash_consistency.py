"""A small sweep on a disk with one fault, at every one of the store's writes in turn; then resumed on a sound one.

Whatever the fault, the final store equals an undisturbed one, times apart.
"""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flbench.errors import UserError
from flbench.store import Store, files
from flbench.store.files import Disk
from flbench.worker import environment, main
from tests.faults.disks import Counting, Deadly, Failing, Forgetful, Full, in_child
from tests.faults.stub import OneByOne, experiments, undisturbed, write_toy_plan

#: Rounds, with an evaluation every second and a checkpoint every fourth: each kind of write happens more than once.
ROUNDS = 6
SEEDS = 2
PLAN = experiments(SEEDS, rounds=ROUNDS, eval_every=2)

#: What a result says that may differ: where and when.
APART = {"file", "attempt", "seconds", "published", "environment"}


def sweep(root: Path) -> int:
    """Plan and execute, as one process: every write of a sweep."""
    try:
        plan = write_toy_plan(Store(root), PLAN)
    except UserError as error:
        return error.exit_code
    return main([str(root), plan], load=lambda options: OneByOne())


@dataclass
class Faulty:
    """Sweeps with a fault each."""

    folder: Path
    writes: int

    def disturb(self, disk: Disk, name: str) -> tuple[Path, int | None]:
        """Sweep on a faulty disk; the store, and the exit code."""
        root = self.folder / name
        return root, in_child(partial(sweep, root), disk)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    environment("cpu")  # asks git; once, for all the children
    patch = pytest.MonkeyPatch()
    patch.setenv("STUB_PAUSE", "0")
    counting, folder = Counting(), tmp_path_factory.mktemp("faulty")
    with pytest.MonkeyPatch.context() as replaced:
        replaced.setattr(files, "disk", counting)
        replaced.setattr("signal.signal", lambda *_: None)
        assert sweep(folder / "calm") == 0
    yield Faulty(folder, counting.calls)
    patch.undo()


def content(store: Store) -> dict[str, Any]:
    """All that counts in a store, times and places apart."""
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
        root, code = faulty.disturb(Deadly(number, torn=torn), f"kill-{torn}-{number}")
        assert code == -signal.SIGKILL, number
        try:
            resume_and_check(root)
        except AssertionError as error:
            raise AssertionError(f"killed at write {number} of {faulty.writes}") from error


def resume_and_check(root: Path) -> None:
    """Sweep again on a sound disk: all is as if nothing had happened, and what was finished is not begun again."""
    assert in_child(partial(sweep, root)) == 0
    store = Store(root)
    for experiment in PLAN:
        run = store.run(experiment.run_id)
        result = run.result_for(experiment)
        assert result is not None
        assert run.metrics(result) == undisturbed(experiment)
        assert result.attempt == run.attempts()[-1].number <= 2
    assert content(store) == content(Store(root.parent / "calm"))


def test_killed_at_some_writes(faulty: Faulty) -> None:
    check_kills(faulty, some(faulty.writes, 11), torn=False)


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_every_write(faulty: Faulty, torn: bool) -> None:
    check_kills(faulty, some(faulty.writes, 1), torn=torn)


def check_faults(faulty: Faulty, numbers: range, disk: Callable[[int], Disk], name: str) -> None:
    """The worker ends in order (0: it got over it; 4: it said that the store cannot be used), and so does the sweep."""
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
    """No attempt that is over looks as if it were going on."""
    if Store.exists(root) and (root / "runs").is_dir():
        store = Store(root)
        states = [store.run(experiment.run_id).state(experiment) for experiment in PLAN]
        assert all(state.status != "running" for state in states)
        assert all(state.charges <= 1 for state in states)


def eio(number: int) -> Disk:
    return Failing(number, errno.EIO)


def eio_forever(number: int) -> Disk:
    return Failing(number, errno.EIO, forever=True)


FAULTS = {"eio": eio, "eio-forever": eio_forever, "lost": Forgetful}


@pytest.mark.parametrize("name", FAULTS)
def test_disk_fails_at_some_writes(faulty: Faulty, name: str) -> None:
    check_faults(faulty, some(faulty.writes, 19), FAULTS[name], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_disk_fails_at_every_write(faulty: Faulty, name: str) -> None:
    check_faults(faulty, some(faulty.writes, 1), FAULTS[name], f"every-{name}")


def check_full(faulty: Faulty, numbers: range) -> None:
    """A run that ends for lack of room says so, in the room it had set aside; once there is room, all goes on."""
    told = 0
    for number in numbers:
        root, code = faulty.disturb(Full(number), f"full-{number}")
        assert code in (0, 4), number  # 0: only goodbyes were left
        store = Store(root) if Store.exists(root) else None
        begun = [store.run(experiment.run_id) for experiment in PLAN] if store else []
        for run, experiment in zip(begun, PLAN, strict=False):
            state = run.state(experiment)
            assert state.status in ("done", "failed", "pending"), (number, state)
            if state.status == "failed":
                told += 1
                assert (state.kind, state.user_fixable, state.charges) == ("disk_full", True, 1), number
                assert json.loads((run.attempts()[-1].path / "exit.json").read_bytes())["kind"] == "disk_full"
                run.reset_failures()  # as the next `flbench sweep` does
        resume_and_check(root)
    assert told


def test_disk_full_from_some_writes_on(faulty: Faulty) -> None:
    check_full(faulty, range(40, faulty.writes, 13))


@pytest.mark.slow
def test_disk_full_from_every_write_on(faulty: Faulty) -> None:
    check_full(faulty, some(faulty.writes - 8, 1))
