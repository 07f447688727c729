from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flbench.cli.sweep_run import leaderboard
from flbench.config import Experiment, parse_experiment
from flbench.errors import StoreUnusable, UserError
from flbench.launch import WorkersCrash
from flbench.launch.inline import InlineLauncher
from flbench.orchestrate import Orchestrator
from flbench.progress import Progress, RunSnapshot, Watch
from flbench.run_names import common_fields, label
from flbench.store import Entry, Heartbeat, Lease, RunDir, RunRequest, RunState, Store
from flbench.store.attempts import ending
from flbench.worker import Options
from tests.faults.stub import FAULTS, OneByOne, execute, experiments, orchestrate, undisturbed
from tests.report.stores import claim, finish


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_PAUSE", "0.001")


def inline(
    store: Store, plan: list[Any], show: Callable[[Progress], object] = lambda progress: None, **options: Any
) -> Any:
    """Orchestrate with the worker in this process; return the outcome and all progress, which ``show`` gets too."""

    def launcher() -> InlineLauncher:
        return InlineLauncher(store, "toy/abc", plan, Options(), load=lambda _: OneByOne(execute))

    shown: list[Progress] = []

    def keep(progress: Progress) -> None:
        shown.append(progress)
        show(progress)

    outcome = Orchestrator(store, "toy/abc", plan, launcher, **options).run(show=keep)
    return outcome, shown


def test_a_sweep_is_executed_then_reused_then_extended(store: Store) -> None:
    plan = experiments(3)
    first = orchestrate(store, plan)
    assert (first.exit_code, first.launched, first.progress.done) == (0, 2, 3)
    again = orchestrate(store, plan)
    assert (again.exit_code, again.launched, again.adopted) == (0, 0, 0)
    assert again.fingerprint == first.fingerprint
    longer = experiments(3, rounds=40)
    extended = orchestrate(store, longer)
    assert (extended.exit_code, extended.progress.done) == (0, 3)
    assert extended.fingerprint != first.fingerprint
    for experiment in longer:
        run = store.run(experiment.run_id)
        assert run.metrics() == undisturbed(experiment)
        rounds = (run.attempts()[-1].path / "executed").read_text().split()
        assert rounds == [str(round) for round in range(21, 41)]


def test_at_most_one_worker_per_run_starts(store: Store) -> None:
    assert orchestrate(store, experiments(1), workers=4).launched == 1


def test_inline_worker_runs_in_this_process(store: Store) -> None:
    outcome, shown = inline(store, experiments(2))
    assert (outcome.exit_code, outcome.launched) == (0, 1)
    assert shown[-1].finished
    assert sum(len(progress.news) for progress in shown) == 2
    assert store.live_workers() == []


def test_failed_runs_are_reported_with_their_log(store: Store) -> None:
    plan = [*experiments(1), *experiments(1, lr=0.101)]
    outcome, _ = inline(store, plan)
    assert (outcome.exit_code, outcome.progress.done, outcome.progress.failed) == (1, 1, 1)
    (seen,) = outcome.failures
    assert (seen.outcome, seen.state.message) == ("error", "RuntimeError: the toy is broken")
    assert seen.log is not None
    assert "Traceback" in seen.log.read_text()
    assert "lr=0.101" in seen.label
    again, _ = inline(store, plan)
    assert (again.exit_code, again.launched) == (1, 0)


def test_user_fixable_failures_are_retried_by_the_next_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments(1, lr=0.105)
    outcome, _ = inline(store, plan)
    assert (outcome.exit_code, outcome.failures[0].state.message) == (1, "the toy's data are not there")
    monkeypatch.delitem(FAULTS, 0.105)
    outcome, _ = inline(store, plan)
    assert (outcome.exit_code, outcome.launched) == (0, 1)


def test_worker_that_dies_with_its_run_is_replaced_until_the_run_is_given_up(store: Store) -> None:
    outcome = orchestrate(store, experiments(1, lr=0.106), attempts=2)
    assert (outcome.exit_code, outcome.launched) == (1, 2)
    assert outcome.failures[0].outcome in (
        "signal",
        "lost",
    )  # lost: read before the worker's end was recorded


class DelayedLauncher(InlineLauncher):
    """Refuses the first five starts, as SLURM does while a partition is drained."""

    refusals = 0

    def start(self, count: int, out_of_memory: int = 0) -> int:
        if self.refusals < 5:
            self.refusals += 1
            return 0
        return super().start(count, out_of_memory)


def test_workers_that_cannot_start_yet_are_waited_for(store: Store) -> None:
    plan = experiments(1)

    def launcher() -> InlineLauncher:
        return DelayedLauncher(store, "toy/abc", plan, Options(), load=lambda _: OneByOne(execute))

    outcome = Orchestrator(store, "toy/abc", plan, launcher).run()
    assert (outcome.exit_code, outcome.launched) == (0, 1)


def test_a_detached_sweep_whose_workers_cannot_start_says_so(store: Store) -> None:
    plan = experiments(1)

    def launcher() -> InlineLauncher:
        delayed = DelayedLauncher(store, "toy/abc", plan, Options())
        delayed.delayed = "SLURM takes no jobs now"
        return delayed

    with pytest.raises(UserError, match="no worker was started: SLURM takes no jobs now; run the same command again"):
        Orchestrator(store, "toy/abc", plan, launcher).run(detach=True)


class DyingWorkerLauncher:
    """Start a worker that is killed after it was counted and before its run is read."""

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.slots, self.start_seconds, self.delayed = 1, 0.0, ""
        self._store, self._experiment = store, experiment
        self._counts: Iterator[int] | None = None
        self._lease = replace(Lease.here(), pid_start="not this process")

    def start(self, count: int, out_of_memory: int = 0) -> int:
        assert self._store.claim(self._experiment, self._lease) is not None
        self._counts = iter([1])
        return count

    def alive(self) -> int:
        if self._counts is None:
            return 0
        if next(self._counts, 0):
            return 1
        self._store.record_death(self._lease.token, ending("oom", "its worker was killed", user_fixable=True))
        return 0

    def tokens(self) -> set[str]:
        return {self._lease.token}

    def drain(self) -> None: ...

    def kill(self) -> None: ...

    def crash_log(self) -> str:
        return ""


def test_no_worker_starts_for_a_run_whose_end_is_recorded_a_moment_later(store: Store) -> None:
    (greedy,) = experiments(1)
    outcome = Orchestrator(store, "toy/abc", [greedy], lambda: DyingWorkerLauncher(store, greedy)).run()
    assert (outcome.exit_code, outcome.launched) == (1, 1)
    assert [seen.outcome for seen in outcome.failures] == ["oom"]


class CountingLauncher(DyingWorkerLauncher):
    """Counts the workers that it is asked to start, of which each takes ten seconds to start."""

    def __init__(self) -> None:
        self.slots, self.start_seconds, self.started, self.delayed = 33, 10.0, 0, ""

    def start(self, count: int, out_of_memory: int = 0) -> int:
        self.started += count
        return count

    def alive(self) -> int:
        return self.started

    def tokens(self) -> set[str]:
        return set()


@pytest.mark.parametrize(("rounds", "finished", "workers"), [(4, 0, 2), (400, 0, 33), (4, 1, 4), (400, 1, 4)])
def test_as_many_workers_start_as_the_work_is_worth(store: Store, rounds: int, finished: int, workers: int) -> None:
    """By the speed of the finished runs, which take one second each, and without any by a usual one."""
    plan = experiments(33 + finished, rounds=rounds)
    for experiment in plan[33:]:
        finish(store, experiment)
    launcher = CountingLauncher()
    Orchestrator(store, "toy/abc", plan, lambda: launcher).run(detach=True)
    assert launcher.started == workers


def test_workers_follow_if_runs_take_long(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments(33, rounds=1)
    orchestrator = Orchestrator(store, "toy/abc", plan, CountingLauncher)
    progress = Watch(store, [Entry.of(one) for one in plan], 3).update()
    busy = replace(progress, active=(RunSnapshot("", "", 1, RunState("running")),) * 2)
    now = iter([0.0, 1.0, 100.0])
    monkeypatch.setattr("flbench.orchestrate.time.monotonic", lambda: next(now))
    found = [orchestrator._workers_worth(CountingLauncher(), one) for one in (progress, busy, busy)]
    assert found == [1, 1, 20]


def test_crash_loop_ends_with_the_workers_log(store: Store) -> None:
    broken = (sys.executable, "-c", "import sys; sys.exit('no such library')")
    with pytest.raises(
        WorkersCrash, match=r"(?s)end right after they start; .*log.txt .exit code 1. ends with:\nno such"
    ):
        orchestrate(store, experiments(2), workers=1, attempts=1, command=broken)


def test_detached_workers_continue(store: Store) -> None:
    plan = experiments(1)
    outcome = orchestrate(store, plan, detach=True)
    assert (outcome.exit_code, outcome.launched) == (3, 1)
    assert orchestrate(store, plan).exit_code == 0


def test_run_of_another_orchestrators_worker_is_awaited_and_resumed(store: Store) -> None:
    plan = experiments(1)
    holder = subprocess.Popen(["sleep", "1000"])
    try:
        stat = Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()
        lease = Lease(**{**Lease.here().to_json(), "pid": holder.pid, "pid_start": stat[19]})
        assert store.claim(plan[0], lease) is not None
        outcome, shown = inline(store, plan, show=lambda progress: holder.kill())
    finally:
        holder.kill()
        holder.wait()
    assert shown[0].active[0].state.status == "running"
    assert (outcome.exit_code, outcome.launched) == (0, 1)


def test_workers_of_another_plan_take_slots_except_the_last(store: Store) -> None:
    with Heartbeat(store.workers, Lease.here(), "other/plan"):
        outcome = orchestrate(store, experiments(2), workers=1)
    assert (outcome.exit_code, outcome.launched, outcome.adopted) == (0, 1, 0)


def test_plans_share_runs(store: Store) -> None:
    orchestrate(store, experiments(2), name="small")
    outcome = orchestrate(store, experiments(3), name="large", workers=1)
    assert (outcome.progress.done, outcome.launched) == (3, 1)
    assert [len(store.run(one.run_id).attempts()) for one in experiments(3)] == [1, 1, 1]
    assert len(store.sweep_dirs()) == 2


def test_unreadable_lease_of_a_worker_is_skipped(store: Store) -> None:
    (store.workers / "strange").mkdir()
    (store.workers / "strange" / "lease.json").write_text("{")
    assert store.live_workers() == []
    assert orchestrate(store, experiments(1)).exit_code == 0


# --- watching


def watching(store: Store, plan: list[Any], monkeypatch: pytest.MonkeyPatch, *times: float) -> Watch:
    """Return a watch that is read at these times, for the first time by this call."""
    now = iter(times)
    monkeypatch.setattr("flbench.progress.time.monotonic", lambda: next(now))
    watch = Watch(store, [Entry.of(one) for one in plan], max_attempts=1)
    assert watch.update().rounds_per_second is None
    return watch


def test_progress_counts_rounds_and_never_decreases(store: Store) -> None:
    plan = experiments(2)
    watch = Watch(store, [Entry.of(one) for one in plan], max_attempts=3)
    assert (watch.update().pending, watch.update().rounds_total) == (2, 40)
    attempt = claim(store, plan[0])
    attempt.adopt(None)
    attempt.record({"round": 10, "acc": 0.5})
    progress = watch.update()
    (active,) = progress.active
    assert (active.round, active.rounds, active.value, progress.rounds_done) == (10, 20, 0.5, 10)
    attempt.end("interrupted")
    assert store.claim(plan[0], Lease.here()) is not None  # the new attempt has not copied the metrics yet
    assert watch.update().rounds_done == 10


def test_a_store_that_is_moved_between_two_reads_of_a_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments(1)
    claim(store, plan[0])
    of_run = RunDir.state

    def state_then_moved(self: RunDir, request: RunRequest) -> RunState:
        found = of_run(self, request)
        store.root.rename(store.root.with_name("moved"))
        return found

    watch = Watch(store, [Entry.of(one) for one in plan], max_attempts=3)
    monkeypatch.setattr(RunDir, "state", state_then_moved)
    with pytest.raises(StoreUnusable, match="deleted or moved"), store.usable():
        watch.update()


def test_speed_and_remaining_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = experiments(1, rounds=100)
    watch = watching(store, [experiment], monkeypatch, 100.0, 102.0, 104.0)
    attempt = claim(store, experiment)
    attempt.record({"round": 20})
    progress = watch.update()
    assert (progress.rounds_per_second, progress.eta) == (10.0, 8.0)
    attempt.record({"round": 40})
    assert watch.update().rounds_per_second == 10.0


def test_speed_excludes_the_start_up_of_workers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = experiments(1, rounds=100)
    watch = watching(store, [experiment], monkeypatch, 0.0, 10.0, 11.0, 12.0, 13.0)
    attempt = claim(store, experiment)
    speeds = []
    for round in (10, 30, 50):
        attempt.record({"round": round})
        speeds.append(watch.update().rounds_per_second)
    assert speeds == [1.0, pytest.approx(30 / 11), 20.0]
    # Without new rounds the speed decreases.
    assert watch.update().rounds_per_second == pytest.approx(40 / 3)


def test_speed_of_rounds_longer_than_the_window(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = experiments(1, rounds=100)
    watch = watching(store, [experiment], monkeypatch, *range(0, 20_000, 1000))
    attempt = claim(store, experiment)
    for round in range(1, 20):
        attempt.record({"round": round})
        progress = watch.update()
    assert progress.rounds_per_second == pytest.approx(0.001)
    assert progress.eta == pytest.approx(81_000)
    assert progress.runs_per_hour == pytest.approx(0.036)


def test_remaining_time_excludes_the_rounds_of_failed_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    works, fails = experiments(2, rounds=100)
    watch = watching(store, [works, fails], monkeypatch, 0.0, 10.0)
    for experiment, round in ((works, 60), (fails, 40)):
        attempt = claim(store, experiment)
        attempt.record({"round": round})
    attempt.end("error", "it broke")
    progress = watch.update()
    assert (progress.rounds_given_up, progress.rounds_per_second, progress.eta) == (60, 10.0, 4.0)
    assert [(index, seen.outcome) for index, seen in progress.ended.items()] == [(1, "error")]


def test_speed_of_plans_without_rounds_is_in_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [parse_experiment({"kind": "sharpness", "width": 8, "seed": seed}) for seed in range(6)]
    watch = watching(store, plan, monkeypatch, 0.0, 10.0)
    for experiment in plan[:2]:
        attempt = claim(store, experiment)
        attempt.record({"round": 0, "lambda_max": 7.5})
        attempt.publish(status="done", rounds=0, seconds=1.0, fingerprint="gaussian", numerics={})
        attempt.end("ok")
    progress = watch.update()
    assert (progress.rounds_per_second, progress.runs_per_second, progress.eta) == (None, 0.2, 20.0)
    assert (progress.runs_per_hour, progress.share) == (720.0, pytest.approx(1 / 3))
    assert [(seen.metric, seen.value, seen.label) for seen in progress.news] == [
        ("lambda_max", 7.5, "none s0"),
        ("lambda_max", 7.5, "none s1"),
    ]


def labels(plan: list[Entry]) -> list[str]:
    common = common_fields(plan)
    return [label(entry.experiment, common) for entry in plan]


def test_labels_show_the_fields_that_differ() -> None:
    plan = [
        {"method": "fedavg", "norm": "ln", "lr": 0.1, "seed": 3},
        {"method": "fedyogi", "norm": "none", "lr": 0.01, "E": 5},
        {"kind": "centralized"},
    ]
    assert labels([Entry.of(parse_experiment(raw)) for raw in plan]) == [
        "federated fedavg ln lr=0.1 E=10 s3",
        "federated fedyogi none lr=0.01 E=5 s0",
        "centralized none s0",
    ]


def test_label_of_a_component_that_no_longer_exists() -> None:
    entry = Entry.of(parse_experiment({}))
    gone = Entry("id", "cell", {**entry.experiment, "norm": {"name": "gone"}})
    assert labels([gone]) == ['fedavg {"name":"gone"} s0']


def test_leaderboard_is_written_again_only_if_it_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def write(store: Store, sweeps: list[Any], path: Path, papers: Any, arguments: list[str]) -> None:
        made.append(path.name)
        path.write_text("board")

    class Report:
        class spec:
            class report:
                model_dump = staticmethod(lambda mode: {})

    sweep: Any = Report()
    monkeypatch.setattr("flbench.report.output.write_leaderboard", write)
    tables = "flbench.report.write.terminal.to_terminal"
    monkeypatch.setattr(tables, lambda board, width: [f"table {len(made)} of {width}"])
    texts = [
        leaderboard(store, sweep, store.root, fingerprint, width)[1].strip()
        for fingerprint, width in (("a", 80), ("a", 80), ("b", 80), ("b", 90))
    ]
    assert texts == ["table 1 of 80", "table 1 of 80", "table 2 of 80", "table 3 of 90"]
    (changed := store.root / "changed.py").touch()
    monkeypatch.setattr(Path, "rglob", lambda folder, pattern: [changed])
    assert leaderboard(store, sweep, store.root, "b", 90)[1].strip() == "table 4 of 90", "the code is other"
