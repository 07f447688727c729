"""kill -9 and interrupts of workers and orchestrators, followed by the same command."""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment
from flbench.store import Lease, Store
from flbench.store.leases import process_start
from tests.faults.disks import in_child
from tests.faults.stub import ROOT, experiments, recorded, undisturbed
from tests.limits import wait_until
from tests.warm import warm_python

ROUNDS = 40
STUB = ("-m", "tests.faults.stub")

#: Python itself, whose start is the user's. A warm one gives its workers a parent each of their own.
COLD = sys.executable
PYTHONS = pytest.mark.parametrize("python", [COLD, ""], ids=["cold", "warm"])


def start(store: Store, seeds: int, pause: float = 0.01, python: str = "", **options: Any) -> subprocess.Popen[str]:
    environ = {**os.environ, "STUB_PAUSE": str(pause)}
    command = [python or warm_python(), *STUB, "sweep", str(store.root), str(seeds), str(ROUNDS)]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, **options)


def finish(store: Store, seeds: int) -> dict[str, int]:
    """Run the same command again until it ends."""
    process = start(store, seeds, pause=0.001)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    return outcome_of(out)


def outcome_of(out: str) -> dict[str, int]:
    return dict(json.loads(out.splitlines()[-1]))


def executed(store: Store, run_id: str) -> list[list[int]]:
    """Return the rounds that each attempt of a run executed."""
    paths = sorted((store.run(run_id).path / "attempts").glob("*/executed"))
    return [[int(line) for line in path.read_text().split("\n")[:-1]] for path in paths]


def kill_everything(store: Store, orchestrator: subprocess.Popen[str]) -> None:
    orchestrator.kill()
    orchestrator.communicate()
    for worker in store.live_workers():
        os.kill(worker.lease.pid, signal.SIGKILL)
    wait_until(lambda: not store.live_workers())


def check_undisturbed(store: Store, plan: list[Experiment]) -> None:
    for experiment in plan:
        run = store.run(experiment.run_id)
        assert run.metrics(run.result_for(experiment)) == undisturbed(experiment)


def check_little_repeated(store: Store, plan: list[Experiment]) -> None:
    """Check that attempts resume from the last checkpoint (every fourth round) and end with the published result."""
    for experiment in plan:
        tries = executed(store, experiment.run_id)
        for before, after in pairwise(tries):
            if before:
                assert after == [] or after[0] > (before[-1] - 1) // 4 * 4 - 4
        assert sum(ROUNDS in rounds for rounds in tries) <= 2  # killed between the last round and its publication
        result = store.run(experiment.run_id).result_for(experiment)
        assert result is not None
        assert result.attempt == len(store.run(experiment.run_id).attempts())


@pytest.mark.slow
@PYTHONS
def test_kill_worker_during_a_run(store: Store, python: str) -> None:
    plan = experiments(4, rounds=ROUNDS)
    orchestrator = start(store, 4, python=python)
    wait_until(lambda: recorded(store) > 4)
    victim = store.live_workers()[0].lease
    os.kill(victim.pid, signal.SIGKILL)
    out, _ = orchestrator.communicate(timeout=120)
    assert orchestrator.returncode == 0
    assert outcome_of(out)["launched"] == 3  # the killed worker was replaced
    check_undisturbed(store, plan)
    check_little_repeated(store, plan)
    assert sum(len(store.run(experiment.run_id).attempts()) for experiment in plan) <= 5


def start_and_adopt(store: Store) -> subprocess.Popen[str]:
    """Start an orchestrator and wait until it has looked for running workers."""
    (watching := store.root.with_name("watching")).unlink()
    successor = start(store, 4)
    wait_until(lambda: watching.exists() and watching.stat().st_size > 1)
    return successor


@pytest.mark.slow
@PYTHONS
def test_kill_orchestrator_during_a_sweep(store: Store, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments(4, rounds=ROUNDS)
    monkeypatch.setenv("STUB_HOLD", str(hold := store.root.with_name("hold")))
    orchestrator = start(store, 4, 0.05, python)
    wait_until(lambda: recorded(store) > 2 and len(store.live_workers()) == 2)
    hold.touch()
    orchestrator.kill()
    orchestrator.communicate()
    before = recorded(store)
    successor = start_and_adopt(store)
    hold.unlink()
    out, _ = successor.communicate(timeout=120)
    assert (successor.returncode, outcome_of(out)) == (0, {"launched": 0, "adopted": 2, "done": 4})
    assert recorded(store) > before
    check_undisturbed(store, plan)
    for experiment in plan:
        assert executed(store, experiment.run_id) == [list(range(1, ROUNDS + 1))]
    assert finish(store, 4)["launched"] == 0


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)]
)
def test_kill_everything_at_random_moments(store: Store, kills: int) -> None:
    seeds = 2 * kills
    plan = experiments(seeds, rounds=ROUNDS)
    moments = random.Random(kills)
    for _ in range(kills):
        orchestrator = start(store, seeds)
        floor = recorded(store)
        wait_until(lambda floor=floor, process=orchestrator: recorded(store) > floor or process.poll() is not None)
        time.sleep(moments.uniform(0, 0.15))
        kill_everything(store, orchestrator)
    finish(store, seeds)
    check_undisturbed(store, plan)
    check_little_repeated(store, plan)
    assert finish(store, seeds)["launched"] == 0


@pytest.mark.slow
def test_kill_then_truncate_every_file(store: Store) -> None:
    plan = experiments(2, rounds=ROUNDS)
    orchestrator = start(store, 2)
    checkpoints = "runs/*/*/attempts/*/checkpoint/*"
    wait_until(lambda: len({path.parent for path in store.root.glob(checkpoints)}) == len(plan))
    kill_everything(store, orchestrator)
    torn = [*store.root.glob("runs/*/*/attempts/*/metrics.jsonl"), *store.root.glob(checkpoints)]
    assert len(torn) >= 4
    for path in torn:
        path.write_bytes(path.read_bytes()[:-3])
    finish(store, 2)
    check_undisturbed(store, plan)
    assert list(store.quarantine.iterdir())


@pytest.mark.slow
def test_truncated_result_is_computed_again(store: Store) -> None:
    plan = experiments(2, rounds=ROUNDS)
    finish(store, 2)
    (victim,) = store.run(plan[0].run_id).results()
    victim.path.write_bytes(victim.path.read_bytes()[:100])
    assert finish(store, 2)["launched"] == 1
    check_undisturbed(store, plan)
    assert len(executed(store, plan[1].run_id)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_drains(store: Store, number: signal.Signals) -> None:
    plan = experiments(4, rounds=ROUNDS)
    orchestrator = start(store, 4, 0.05, COLD)
    wait_until(lambda: recorded(store) > 2)
    orchestrator.send_signal(number)
    orchestrator.communicate(timeout=120)
    assert orchestrator.returncode == 130
    assert store.live_workers() == []
    ends = [attempt.exit() for one in plan for attempt in store.run(one.run_id).attempts()]
    assert {end["kind"] for end in ends if end} == {"interrupted"}
    finish(store, 4)
    check_undisturbed(store, plan)
    for experiment in plan:  # no round was lost or executed twice
        assert list(chain(*executed(store, experiment.run_id))) == list(range(1, ROUNDS + 1))


@pytest.mark.slow
def test_interrupt_drains_adopted_workers_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_HOLD", str(hold := store.root.with_name("hold")))
    orchestrator = start(store, 4, pause=0.05)
    wait_until(lambda: recorded(store) > 2 and len(store.live_workers()) == 2)
    hold.touch()
    orchestrator.kill()
    orchestrator.communicate()
    successor = start_and_adopt(store)
    successor.send_signal(signal.SIGINT)
    hold.unlink()
    successor.communicate(timeout=120)
    assert successor.returncode == 130
    assert store.live_workers() == []


@pytest.mark.slow
def test_stopped_worker_exits_with_the_requeue_code(store: Store) -> None:
    orchestrator = start(store, 1, pause=0.05)
    wait_until(lambda: recorded(store) > 0)
    (directory,) = store.sweep_dirs()
    kill_everything(store, orchestrator)
    plan = str(directory.relative_to(store.sweeps))
    command = [warm_python(), *STUB, "work", str(store.root), plan]
    worker = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "STUB_PAUSE": "0.05"})
    wait_until(lambda: len(list(store.root.glob("runs/*/*/attempts/0002/executed"))) == 1)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=120) == 75


@pytest.mark.slow
def test_two_orchestrators_at_once_share_the_work(store: Store) -> None:
    plan = experiments(4, rounds=ROUNDS)
    both = [start(store, 4), start(store, 4)]
    for process in both:
        process.communicate(timeout=120)
        assert process.returncode == 0
    check_undisturbed(store, plan)
    for experiment in plan:
        assert executed(store, experiment.run_id) == [list(range(1, ROUNDS + 1))]


def held(store: Store) -> list[list[Path]]:
    """Return the open attempts of each live worker."""
    leases = [(path, Lease.read(path)) for path in store.root.glob("runs/*/*/attempts/[0-9]*/lease.json")]
    tokens = [worker.lease.token for worker in store.live_workers()]
    return [[path for path, lease in leases if lease is not None and lease.token == token] for token in tokens]


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_interrupt_kills_at_once_and_charges_no_attempt(
    store: Store, group: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_GROUP", str(group))
    plan = experiments(4, rounds=ROUNDS)
    for _ in range(3):  # as many times as a run may fail
        orchestrator = start(store, 4, pause=30)
        wait_until(lambda: max(map(len, held(store)), default=0) == group)
        orchestrator.send_signal(number)
        wait_until((stopping := store.root.with_name("stopping")).exists)
        stopping.unlink()
        orchestrator.send_signal(number)
        orchestrator.communicate(timeout=120)
        assert orchestrator.returncode == 130
        wait_until(lambda: not store.live_workers())
        states = [store.run(experiment.run_id).state(experiment) for experiment in plan]
        assert {(state.status, state.failures) for state in states} == {("pending", 0)}
    finish(store, 4)
    check_undisturbed(store, plan)


@pytest.mark.slow
def test_ignored_interrupts_stay_ignored_and_termination_drains(store: Store) -> None:
    """A script's background job ignores SIGINT; SIGTERM still drains the sweep."""
    orchestrator = start(store, 4, 0.05, COLD, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    wait_until(lambda: recorded(store) > 0)
    orchestrator.send_signal(signal.SIGINT)
    before = recorded(store)
    wait_until(lambda: recorded(store) > before + 1)
    assert orchestrator.poll() is None
    orchestrator.send_signal(signal.SIGTERM)
    orchestrator.communicate(timeout=120)
    assert orchestrator.returncode == 130
    assert store.live_workers() == []


@pytest.mark.slow
def test_blocked_signals_reach_orchestrator_and_workers(store: Store) -> None:
    """A parent process may start flbench with blocked signals."""
    mask = {signal.SIGINT, signal.SIGTERM}
    orchestrator = start(store, 4, 0.05, COLD, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, mask))
    wait_until(lambda: recorded(store) > 0)
    orchestrator.send_signal(signal.SIGTERM)
    orchestrator.communicate(timeout=120)
    assert orchestrator.returncode == 130
    assert store.live_workers() == []


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.05, 2.0])
def test_a_deleted_store_stays_deleted(store: Store, pause: float) -> None:
    """Workers of a detached sweep exit after their round and do not create the store again."""
    orchestrator = start(store, 4, pause)
    wait_until(lambda: len(list(store.root.glob("runs/*/*/attempts/0001/executed"))) == 2)
    pids = [worker.lease.pid for worker in store.live_workers()]
    starts = [process_start(pid) for pid in pids]
    assert len(pids) == 2
    orchestrator.kill()
    orchestrator.communicate()
    moved = store.root.rename(store.root.with_name("moved"))
    wait_until(lambda: all(process_start(pid) != begun for pid, begun in zip(pids, starts, strict=True)))
    assert not store.root.exists()
    for log in moved.glob("workers/*/log.txt"):
        assert log.read_text().splitlines()[-1].endswith("was deleted or moved while it was in use")


@pytest.mark.slow
def test_a_sweep_whose_store_is_deleted_exits_with_a_message(store: Store) -> None:
    orchestrator = start(store, 4, 0.05, stderr=subprocess.PIPE)
    wait_until(lambda: recorded(store) > 2)
    store.root.rename(store.root.with_name("moved"))
    _, err = orchestrator.communicate(timeout=120)
    assert not store.root.exists()
    assert orchestrator.returncode == 4, err
    assert err.splitlines()[-1].endswith("was deleted or moved while it was in use")


@pytest.mark.slow
def test_a_store_removed_under_its_workers_stays_removed(store: Store) -> None:
    orchestrator = start(store, 4, 0.05)
    wait_until(lambda: len(list(store.root.glob("runs/*/*/attempts/0001/executed"))) == 2)
    workers = {worker.lease.pid: process_start(worker.lease.pid) for worker in store.live_workers()}
    orchestrator.kill()
    orchestrator.communicate()
    while subprocess.run(["rm", "-rf", str(store.root)], stderr=subprocess.DEVNULL, check=False).returncode:
        pass  # a worker wrote a file while rm was deleting its folder
    wait_until(lambda: all(process_start(pid) != began for pid, began in workers.items()))
    assert not store.root.exists()


def test_tests_of_interrupts_do_not_depend_on_the_callers_signals() -> None:
    """A script starts background jobs with SIGINT ignored, and a parent may block signals: children inherit both."""

    def deaf() -> bool:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        runpy.run_path(str(ROOT / "tests/conftest.py"))
        return int(
            bool(signal.pthread_sigmask(signal.SIG_BLOCK, ())) or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        )

    assert in_child(deaf) == 0
