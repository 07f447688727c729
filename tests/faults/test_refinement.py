"""A refined sweep with one fault at a write of its worker, or with several workers at the same time."""

from __future__ import annotations

import multiprocessing
import signal
from functools import partial
from pathlib import Path

import pytest

from flbench.planning import write_plan
from flbench.store import Store, files
from flbench.sweeps import Sweep, load_sweep
from flbench.worker import environment, main
from tests.faults.disks import Counting, Failing, Killing, in_child
from tests.faults.stub import OneByOne
from tests.refined import SWEEP, TRIED, go, train, tried

EXPECTED = {place: rates for place, rates in TRIED.items() if place[0] == "classes:2"}

fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    environment("cpu")  # calls git once, for all child processes
    path = tmp_path_factory.mktemp("refined") / "refined.yaml"
    path.write_text(SWEEP)
    return load_sweep(path, ["seeds=[0]"], ["partition=classes:2"])


def worker(root: Path, plan: str) -> int:
    return main([str(root), plan], load=lambda _: OneByOne(train))


def planned(root: Path, sweep: Sweep) -> partial[int]:
    directory = write_plan(Store(root), sweep)
    return partial(worker, root, "/".join(directory.parts[-2:]))


def writes_of(root: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of writes of one worker that executes the sweep."""
    execute, counting = planned(root, sweep), Counting()
    with monkeypatch.context() as replaced:
        replaced.setattr(files, "disk", counting)
        replaced.setattr("signal.signal", lambda *_: None)
        assert execute() == 0
    return counting.calls


def check(root: Path, sweep: Sweep) -> None:
    """Resume; the same runs are there as without the fault, and the plan names all of them."""
    execute = planned(root, sweep)
    assert in_child(execute) == 0
    store = Store(root)
    assert tried(store) == EXPECTED
    assert store.planned_ids() == set(store.run_ids())
    before = sorted(path.stat().st_mtime_ns for path in root.glob("runs/*/*/results/*.json"))
    assert in_child(execute) == 0
    assert sorted(path.stat().st_mtime_ns for path in root.glob("runs/*/*/results/*.json")) == before


@pytest.mark.parametrize(
    "every", [pytest.param(23, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)]
)
def test_killed_or_failed_at_some_writes(
    tmp_path: Path, sweep: Sweep, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = writes_of(tmp_path / "calm", sweep, monkeypatch)
    for number in range(every, writes + 1, every):
        killed, failed = tmp_path / f"killed-{number}", tmp_path / f"failed-{number}"
        assert in_child(planned(killed, sweep), Killing(number)) == -signal.SIGKILL
        check(killed, sweep)
        assert in_child(planned(failed, sweep), Failing(number)) in (0, 4)
        check(failed, sweep)


def test_workers_at_the_same_time_add_the_same_runs(tmp_path: Path, sweep: Sweep) -> None:
    store = Store(tmp_path / "store")
    processes = [fork.Process(target=go, args=(store, sweep), kwargs={"offset": offset}) for offset in (0, 2, 4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    go(store, sweep)
    assert tried(store) == EXPECTED
    assert {len(store.run(run_id).attempts()) for run_id in store.run_ids()} == {1}
