"""Faults of workers, machines and disks with the local backend: one test a row of docs/faults.md."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flbench.config import Experiment
from flbench.errors import StoreUnusable, UserError
from flbench.orchestrate import Outcome
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Heartbeat, Lease, Store, files, leases, read_plan, strict_json
from flbench.store.leases import process_start
from tests.faults.disks import ShiftedClock, TwoClocks
from tests.faults.stub import ROOT, WORKER, experiments, orchestrate, write_toy_plan
from tests.faults.test_kills import check_undisturbed, executed
from tests.limits import wait_until
from tests.report.stores import claim
from tests.warm import warm_python

GREEDY, STOPPED = 0.107, 0.108


def check_failed(store: Store, experiment: Experiment, kind: str) -> str:
    """Check that the report shows a run as failed with this kind; return its message."""
    (run,) = collect(StoreSource(store), [experiment]).runs
    assert (run.state, run.failure) == ("failed", kind)
    return store.run(experiment.run_id).state(experiment).message


def check_done_once(store: Store, plan: list[Experiment]) -> None:
    """Check that every run is done with the right metrics, and that no round was executed twice."""
    check_undisturbed(store, plan)
    for experiment in plan:
        assert executed(store, experiment.run_id) == [list(range(1, experiment.rounds + 1))]


# --- the machine reboots


def rebooted(store: Store, experiment: Experiment, *, idle: float) -> Lease:
    """Create the lease of a worker from before the last boot; its process id exists again."""
    lease = Lease(**{**Lease.here().to_json(), "boot_id": "the-boot-before"})
    attempt = claim(store, experiment, lease)
    attempt.adopt(None)
    with Heartbeat(store.workers, lease, "toy/before"):
        pass  # removes the heartbeat at its end; restore the files as a power cut leaves them:
    heartbeat = store.workers / lease.token / "heartbeat"
    files.make_directory(heartbeat.parent, store.workers)
    files.replace(heartbeat.parent / "lease.json", strict_json.pretty(lease.to_json()))
    files.disk.touch(heartbeat)
    touched = heartbeat.stat().st_mtime - idle
    os.utime(heartbeat, (touched, touched))
    return lease


def test_lease_of_another_boot_expires_even_if_its_pid_exists(store: Store) -> None:
    plan = experiments(2)
    rebooted(store, plan[0], idle=90)
    assert process_start(os.getpid()) is not None
    assert store.run(plan[0].run_id).state(plan[0]).status == "lost"
    outcome = orchestrate(store, plan)
    assert (outcome.exit_code, outcome.progress.done) == (0, 2)
    check_undisturbed(store, plan)
    assert len(store.run(plan[0].run_id).attempts()) == 2


def test_lease_of_another_boot_is_alive_while_its_heartbeat_is_young(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (experiment,) = experiments(1)
    rebooted(store, experiment, idle=0)
    assert store.run(experiment.run_id).state(experiment).status == "running"
    monkeypatch.setattr(leases, "STALE", 1.0)
    monkeypatch.setenv("STUB_STALE", "1")
    assert orchestrate(store, [experiment]).exit_code == 0
    check_undisturbed(store, [experiment])


# --- a worker hangs


@pytest.mark.slow
def test_hanging_worker_is_killed_and_its_run_is_resumed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP in round 3 of every attempt stops the heartbeat, but not the process."""
    for name, seconds in (("INTERVAL", 0.05), ("HANGING", 3.0)):
        monkeypatch.setattr(leases, name, seconds)
        monkeypatch.setenv(f"STUB_{name}", str(seconds))
    stopping, sound = experiments(1, lr=STOPPED)[0], experiments(1)[0]
    outcome = orchestrate(store, [stopping, sound], attempts=2, workers=1)
    assert outcome.exit_code == 1
    assert (outcome.progress.done, outcome.progress.failed) == (1, 1)
    assert store.live_workers() == []
    assert executed(store, stopping.run_id) == [[1, 2, 3], [1, 2, 3]]
    assert "had no heartbeat for" in check_failed(store, stopping, "signal")
    check_done_once(store, [sound])


def test_briefly_paused_worker_keeps_its_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_PAUSE", "0.02")
    plan = experiments(1)

    def pause() -> None:
        wait_until(store.live_workers)
        pid = store.live_workers()[0].lease.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pause)
    thread.start()
    assert orchestrate(store, plan).launched == 1
    thread.join()
    check_done_once(store, plan)


# --- memory


def test_lone_worker_out_of_memory_fails_its_run_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker exceeds RLIMIT_AS; a second attempt under the same conditions would fail, too."""
    monkeypatch.setenv("STUB_MEMORY", str(64 << 20))
    greedy, sound = experiments(1, lr=GREEDY)[0], experiments(1)[0]
    outcome = orchestrate(store, [greedy, sound], workers=1)
    assert (outcome.exit_code, outcome.progress.done) == (1, 1)
    assert outcome.launched == 1
    assert len(store.run(greedy.run_id).attempts()) == 1
    check_failed(store, greedy, "oom")
    check_done_once(store, [sound])


@pytest.mark.slow
def test_out_of_memory_is_retried_with_fewer_workers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_MEMORY", str(64 << 20))
    greedy, others = experiments(1, lr=GREEDY)[0], experiments(4)
    outcome = orchestrate(store, [greedy, *others], workers=3, attempts=9)
    assert (outcome.exit_code, outcome.progress.done) == (1, 4)
    shares = [neighbours_of(store, greedy.run_id, attempt.number) for attempt in store.run(greedy.run_id).attempts()]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 1 and shares.count(1) == 1
    assert len(shares) <= 4  # each of the three workers may fail once, then a single worker
    check_undisturbed(store, others)


def neighbours_of(store: Store, run_id: str, number: int) -> int:
    argv = json.loads((store.run(run_id).path / f"attempts/{number:04d}/environment.json").read_bytes())["argv"]
    return int(next(word for word in argv if word.startswith("--neighbours=")).partition("=")[2])


@contextmanager
def limited_cgroup(megabytes: int) -> Iterator[Path]:
    """Create a memory cgroup (version 1); skip the test if that is not possible."""
    path = Path(f"/sys/fs/cgroup/memory/flbench-{os.getpid()}")
    try:
        path.mkdir()
    except OSError:
        pytest.skip("needs root and a memory cgroup of version 1")
    try:
        (path / "memory.limit_in_bytes").write_text(f"{megabytes}M")
        yield path
    finally:
        path.rmdir()


def test_worker_killed_by_the_oom_killer(store: Store) -> None:
    greedy = experiments(1, lr=GREEDY)[0]
    with limited_cgroup(150) as cgroup:
        enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"'
        outcome = orchestrate(store, [greedy], workers=1, command=("sh", "-c", enter, "sh", *WORKER))
        wait_until(lambda: not (cgroup / "cgroup.procs").read_text())
    assert (outcome.exit_code, outcome.launched) == (1, 1)
    assert "memory ran out" in check_failed(store, greedy, "oom")


# --- the disk is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 48 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs permission to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        room = os.statvfs(place)
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
        file.seek(0, os.SEEK_END)
        for size in (1 << 12, 1):
            try:
                while True:
                    file.write(b"\1" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return ballast


@pytest.mark.slow
def test_full_disk_ends_the_sweep_and_the_next_resumes(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_PAUSE", "0.02")
    store, plan = Store(small_disk / "store"), experiments(3, rounds=40)
    outcome: list[Outcome | StoreUnusable] = []

    def sweep() -> None:
        try:
            outcome.append(orchestrate(store, plan, workers=1))
        except StoreUnusable as error:
            outcome.append(error)

    thread = threading.Thread(target=sweep)
    thread.start()
    wait_until(lambda: store.run(plan[1].run_id).attempts() and store.run(plan[1].run_id).attempts()[-1].records())
    ballast = fill(small_disk)
    thread.join(120)
    (end,) = outcome
    assert isinstance(end, StoreUnusable) and end.exit_code == 4
    assert "disk is full" in str(end) or "MB are free" in str(end)
    states = [store.run(experiment.run_id).state(experiment) for experiment in plan]
    assert [state.status for state in states] == ["done", "failed", "pending"]
    assert (states[1].kind, states[1].failures, states[1].attempts) == ("disk_full", 1, 1)
    check_failed(store, plan[1], "disk_full")
    with pytest.raises(StoreUnusable):
        orchestrate(store, plan, workers=1)  # still full
    ballast.unlink()
    assert orchestrate(store, plan, workers=1).exit_code == 0
    check_undisturbed(store, plan)
    first, second, third = (executed(store, experiment.run_id) for experiment in plan)
    assert first == third == [list(range(1, 41))]
    assert second[0][0] == 1 and second[1][0] > 4


def test_no_run_starts_on_a_nearly_full_disk(small_disk: Path) -> None:
    store = Store(small_disk / "store")
    (small_disk / "ballast").write_bytes(b"\1" * (20 << 20))
    with pytest.raises(StoreUnusable, match="MB are free"):
        orchestrate(store, experiments(2))
    assert list(store.run_ids()) == []


@pytest.mark.slow
def test_file_size_limit_counts_as_a_full_disk(store: Store) -> None:
    """Some clusters set RLIMIT_FSIZE."""
    plan = experiments(1, rounds=200, eval_every=1)
    limit = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.argv[:1] = []; "
    run = limit + "runpy.run_module('tests.faults.stub', run_name='__main__', alter_sys=True)"
    assert resource.RLIM_INFINITY in resource.getrlimit(resource.RLIMIT_FSIZE)
    assert orchestrate(store, plan, command=(sys.executable, "-c", run, "stub", "work")).exit_code == 1
    check_failed(store, plan[0], "disk_full")
    assert orchestrate(store, plan).exit_code == 0
    check_undisturbed(store, plan)


# --- clocks


def elsewhere(store: Store, experiment: Experiment) -> tuple[Lease, Path]:
    """Return the lease of a worker on another machine that holds a run, and its heartbeat file."""
    lease = Lease(**{**Lease.here().to_json(), "host": "elsewhere"})
    assert store.claim(experiment, lease) is not None
    heartbeat = store.workers / lease.token / "heartbeat"
    files.make_directory(heartbeat.parent, store.workers)
    files.disk.touch(heartbeat)
    return lease, heartbeat


class Time:
    """A monotonic clock that tests advance, and a shift of the file system's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.jumped = 0.0, 0.0
        began = time.monotonic()
        monkeypatch.setattr("time.monotonic", lambda: began + self.passed)
        monkeypatch.setattr(files, "disk", ShiftedClock(lambda: self.passed + self.jumped))


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 86400.0 * 365])
def test_live_workers_stay_alive_when_the_file_systems_clock_jumps(
    store: Store, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    clock = Time(monkeypatch)
    (experiment,) = experiments(1)
    _, heartbeat = elsewhere(store, experiment)
    run = store.run(experiment.run_id)
    assert run.state(experiment).status == "running"
    clock.passed, clock.jumped = 5, jump
    assert run.state(experiment).status == "running", "the next heartbeat may still come"
    for _ in range(30):
        clock.passed += 10
        files.disk.touch(heartbeat)
        assert run.state(experiment).status == "running"


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_dead_workers_expire_when_the_file_systems_clock_jumps(
    store: Store, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    clock = Time(monkeypatch)
    (experiment,) = experiments(1)
    elsewhere(store, experiment)
    run = store.run(experiment.run_id)
    assert run.state(experiment).status == "running"
    clock.passed, clock.jumped = 5, jump
    assert run.state(experiment).status == "running"
    clock.passed += leases.STALE + 1
    assert run.state(experiment).status == "lost"


@pytest.mark.parametrize("shift", [3600.0, -3600.0])
def test_live_worker_whose_heartbeat_has_another_clock_is_not_killed(
    store: Store, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    """The local worker is alive, and its heartbeat changes while the orchestrator watches it."""
    worker = subprocess.Popen(["sleep", "100"])
    try:
        lease = Lease(**{**Lease.here().to_json(), "pid": worker.pid, "pid_start": process_start(worker.pid)})
        heartbeat = store.workers / lease.token / "heartbeat"
        files.make_directory(heartbeat.parent, store.workers)
        files.disk.touch(heartbeat)  # dated by another clock, as by a worker of flbench 0.1.0
        clock = Time(monkeypatch)
        monkeypatch.setattr(files, "disk", TwoClocks(lambda: clock.passed + shift))
        for _ in range(40):
            assert not store.liveness.hangs(lease)
            clock.passed += 10
            later = time.time() + clock.passed
            os.utime(heartbeat, (later, later))
        assert not store.liveness.hangs(lease)
        clock.passed += leases.HANGING + 1
        assert store.liveness.hangs(lease), "its heartbeat has stopped"
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("shift", [3600.0, -3600.0])
def test_remote_worker_is_alive_if_writing_and_touching_use_two_clocks(
    store: Store, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    monkeypatch.setattr(files, "disk", TwoClocks(lambda: shift))
    monkeypatch.setattr(leases, "INTERVAL", 0.01)
    (experiment,) = experiments(1)
    lease = Lease(**{**Lease.here().to_json(), "host": "elsewhere"})
    with Heartbeat(store.workers, lease, "toy"):
        assert store.claim(experiment, lease) is not None
        heartbeat = store.workers / lease.token / "heartbeat"
        begun = heartbeat.stat().st_mtime
        wait_until(lambda: heartbeat.stat().st_mtime > begun)
        assert store.run(experiment.run_id).state(experiment).status == "running"


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1e9, -1e9])
def test_clock_of_this_machine_does_not_matter(store: Store, monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    """The clock is decades off, forward or back, while a sweep runs."""
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + shift)
    plan = experiments(2)
    assert orchestrate(store, plan).exit_code == 0
    check_done_once(store, plan)


# --- damaged files, and files of newer versions


def finished(store: Store) -> Experiment:
    (experiment,) = experiments(1, rounds=8, eval_every=4)
    assert orchestrate(store, [experiment]).exit_code == 0
    return experiment


@pytest.mark.slow
def test_result_truncated_at_every_byte_is_never_used(store: Store) -> None:
    experiment = finished(store)
    run = store.run(experiment.run_id)
    (result,) = run.results()
    whole = result.path.read_bytes()
    for length in range(len(whole) - 1):  # the last byte is a newline
        result.path.write_bytes(whole[:length])
        assert run.state(experiment).status != "done", length
        assert not result.path.exists(), length
        assert collect(StoreSource(store), [experiment]).runs[0].state != "done"
    assert len(list(store.quarantine.iterdir())) == len(whole) - 1
    assert orchestrate(store, [experiment]).exit_code == 0
    check_undisturbed(store, [experiment])
    assert executed(store, experiment.run_id) == [list(range(1, 9))], "the run resumes from its last checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exit.json", "lease.json", "environment.json", "metrics.jsonl"])
def test_any_file_of_an_attempt_truncated_at_every_byte(store: Store, name: str) -> None:
    """A truncated file never breaks reading the state; truncated metrics invalidate their result."""
    experiment = finished(store)
    run = store.run(experiment.run_id)
    path = run.attempts()[0].path / name
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        state = run.state(experiment)
        assert (state.status == "done") == (name != "metrics.jsonl"), length
        if name == "metrics.jsonl":
            break
    assert orchestrate(store, [experiment]).exit_code == 0
    check_undisturbed(store, [experiment])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exit.json", "lease.json"])
def test_file_of_an_unfinished_attempt_truncated_at_every_byte(store: Store, name: str) -> None:
    (experiment,) = experiments(1, rounds=8, eval_every=4)
    attempt = claim(store, experiment, Lease(**{**Lease.here().to_json(), "pid": 2**22 + 1}))
    attempt.end("interrupted", round=0)
    path = attempt.path / name
    whole = path.read_bytes()
    run = store.run(experiment.run_id)
    for length in range(len(whole) - 2):
        path.write_bytes(whole[:length])
        assert run.state(experiment).status == ("pending" if name == "lease.json" else "lost"), length
    assert orchestrate(store, [experiment]).exit_code == 0
    check_undisturbed(store, [experiment])


@pytest.mark.slow
def test_plan_truncated_at_any_byte_is_refused_and_written_again(store: Store) -> None:
    plan = experiments(3)
    name = write_toy_plan(store, plan)
    path = store.sweeps / name / "plan.jsonl"
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(StoreUnusable, match=r"plan.jsonl: the plan .* run `flbench sweep` on its spec again"):
            read_plan(path)
    work = subprocess.run([*WORKER, store.root, name], cwd=ROOT, capture_output=True, text=True)
    assert (work.returncode, "Traceback" in work.stderr) == (4, False)
    assert orchestrate(store, plan).exit_code == 0
    assert path.read_bytes() == whole


FUTURE = [
    "format.json",
    "runs/*/*/experiment.json",
    "runs/*/*/results/*.json",
    "runs/*/*/attempts/*/exit.json",
    "runs/*/*/attempts/*/lease.json",
]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", FUTURE)
def test_json_of_a_newer_version_is_refused_and_never_overwritten(store: Store, pattern: str) -> None:
    experiment = finished(store)
    (path,) = store.root.glob(pattern)
    newer = json.dumps({**json.loads(path.read_bytes()), "schema": 2, "kind": "unheard of"}).encode()
    path.write_bytes(newer)
    if "results" not in pattern and "format" not in pattern:
        (result,) = store.root.glob("runs/*/*/results/*.json")
        result.unlink()
    before = {path: path.read_bytes() for path in store.root.glob("runs/**/*") if path.is_file()}
    with pytest.raises(UserError, match=rf"{path.name} was written by a newer flbench \(schema 2"):
        orchestrate(Store(store.root), [experiment], attempts=1)
    assert path.read_bytes() == newer
    assert before == {path: path.read_bytes() for path in store.root.glob("runs/**/*") if path.is_file()}


def test_plan_of_a_newer_version_is_refused_and_never_overwritten(store: Store) -> None:
    plan = experiments(2)
    name = write_toy_plan(store, plan)
    path = store.sweeps / name / "plan.jsonl"
    path.write_bytes(b'{"schema":2,"runs":2}\n' + path.read_bytes())
    newer = path.read_bytes()
    for act in (lambda: orchestrate(store, plan), lambda: read_plan(path)):
        with pytest.raises(StoreUnusable, match=r"plan.jsonl was written by a newer flbench \(schema 2"):
            act()
    assert path.read_bytes() == newer


# --- two sweeps at the same time


SPEC = """
version: 1
name: both
base: {dataset: digits, model: mlp, partition: "classes:1", rounds: 20, eval_every: 10}
axes: {norm: [none, ln, fn]}
seeds: [0, 1]
"""


@pytest.mark.slow
def test_two_sweeps_of_one_spec_at_the_same_time_share_the_work(tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text(SPEC)
    words = ["sweep", str(tmp_path / "both.yaml"), "--store", str(tmp_path / "store"), "--workers", "2", "--json"]
    command = [warm_python(), "-c", "from flbench.cli import main; main()", *words]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [json.loads(process.communicate(timeout=300)[0]) for process in both]
    assert [(one["exit_code"], one["done"], one["total"]) for one in printed] == [(0, 6, 6)] * 2
    store = Store(tmp_path / "store")
    assert [len(store.run(run_id).attempts()) for run_id in store.run_ids()] == [1] * 6
    assert sum(one["launched"] for one in printed) <= 4
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert json.loads(again.stdout)["launched"] == 0
