"""Many processes claim, take over or publish the same run at the same time."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment
from flbench.store import Attempt, Lease, Plan, Store
from flbench.store.queue import BATCH
from flbench.worker import Options, environment, work
from tests.faults.stub import OneByOne, experiments

PROCESSES = 12
RACES = 20

fork = multiprocessing.get_context("fork")


def race(store: Store, plan: list[Experiment], act: Callable[[Store, Experiment], Any]) -> list[list[Any]]:
    """Let all processes act on every experiment at the same time; return their results by experiment."""
    barrier, results = fork.Barrier(PROCESSES), fork.Queue()

    def run() -> None:
        for index, experiment in enumerate(plan):
            barrier.wait()
            results.put((index, act(store, experiment)))
        barrier.wait()  # others may take over the lease of a process that has exited

    processes = [fork.Process(target=run, name=str(number)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    got: list[list[Any]] = [[] for _ in plan]
    for _ in range(PROCESSES * len(plan)):
        index, value = results.get(timeout=120)
        got[index].append(value)
    for process in processes:
        process.join()
    return got


def claim(store: Store, experiment: Experiment) -> int | None:
    attempt = store.claim(experiment, Lease.here())
    return attempt.number if attempt else None


def test_one_process_claims_a_new_run(tmp_path: Path) -> None:
    got = race(Store(tmp_path / "store"), experiments(RACES), claim)
    assert [sorted(filter(None, numbers)) for numbers in got] == [[1]] * RACES


def test_one_process_takes_over_from_a_dead_worker(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), experiments(RACES)
    for experiment in plan:
        store.claim(experiment, Lease(**{**Lease.here().to_json(), "pid": 2**22 + 1}))
    got = race(store, plan, claim)
    assert [sorted(filter(None, numbers)) for numbers in got] == [[2]] * RACES


def test_one_process_publishes(tmp_path: Path) -> None:
    """Many attempts that all believe to hold the run publish it: one complete result appears."""
    store, plan = Store(tmp_path / "store"), experiments(RACES)
    attempts: dict[str, list[Attempt]] = {}
    for experiment in plan:
        for _ in range(PROCESSES):
            attempt = store.claim(experiment, Lease(**{**Lease.here().to_json(), "pid": 2**22 + 1}))
            assert attempt is not None
            attempt.adopt(None)
            for round in sorted(experiment.evaluated_rounds()):
                attempt.record({"round": round, "acc": attempt.number / 100})
            attempts.setdefault(experiment.run_id, []).append(attempt)

    def publish(store: Store, experiment: Experiment) -> bool:
        number = int(multiprocessing.current_process().name)
        attempt = attempts[experiment.run_id][number]
        return attempt.publish(status="done", rounds=20, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics={})

    got = race(store, plan, publish)
    assert [sum(won) for won in got] == [1] * RACES
    for experiment in plan:
        run = store.run(experiment.run_id)
        (result,) = run.results()
        assert run.metrics(result)[-1]["acc"] == result.attempt / 100


def test_many_processes_create_one_store(tmp_path: Path) -> None:
    root = tmp_path / "store"

    def opens(_: Any, experiment: Experiment) -> bool:
        return Store(root / str(experiment.seed)).root.is_dir()

    plan = experiments(RACES)
    root.mkdir()
    assert race(None, plan, opens) == [[True] * PROCESSES] * RACES  # type: ignore[arg-type]


def test_workers_of_short_runs_never_execute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers take batches, two of them the same ones; one is killed within a batch, which costs it one run."""
    monkeypatch.setenv("STUB_PAUSE", "0")
    environment("cpu")
    plan = experiments(4 * BATCH, rounds=4)
    plan[BATCH + 3] = experiments(1, rounds=4, lr=0.106)[0]  # kills its worker
    store = Store(tmp_path / "store")

    def run(offset: int) -> None:
        options = Options(offset=offset, workers=3, max_attempts=1)
        work(store, Plan.of(plan), Lease.here(), options, should_stop=lambda: False, load=lambda _: OneByOne())

    processes = [fork.Process(target=run, args=(offset,)) for offset in (0, 1, 1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert sorted(process.exitcode for process in processes) == [-signal.SIGKILL, 0, 0, 0]
    states = [store.run(one.run_id).state(one) for one in plan]
    assert [len(store.run(one.run_id).attempts()) for one in plan] == [1] * len(plan)
    assert [state.status for state in states] == ["lost" if one.lr == 0.106 else "done" for one in plan]
