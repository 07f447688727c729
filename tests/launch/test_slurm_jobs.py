"""The meaning of SLURM's answers, and workers inside jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment
from flbench.slurm import Job, Row, SlurmPostMortem, record_end, squeue, state_of
from flbench.store import Attempt, Lease, Plan, Store, files, strict_json
from flbench.store.runs import RunDir
from flbench.worker import REQUEUE, Options, main, work
from tests.faults.stub import Done, OneByOne, execute, experiments, undisturbed, write_toy_plan
from tests.launch.programs import program, says
from tests.report.stores import claim


@pytest.fixture(autouse=True)
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that precedes the search path, with programs that fail."""
    (directory := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    for name in ("squeue", "scontrol", "sacct"):
        program(directory, name, "echo 'error: Invalid job id specified' >&2; exit 1")
    monkeypatch.setenv("STUB_PAUSE", "0")
    return directory


ROWS = "17|0|RUNNING|n1|flb-a\n17|1|PENDING||flb-a\n18|N/A|OUT_OF_MEMORY|n[1-2]|flb-b\n"


def test_rows_of_the_queue_are_parsed(bin: Path) -> None:
    says(bin, "squeue", ROWS + "a line of something else\n")
    rows = squeue(["flb-a", "flb-b"])
    assert rows is not None and rows[0] == Row("17", "0", "RUNNING", "n1", "flb-a")
    assert [row.alive for row in rows] == [True, True, False]


def test_a_queue_without_an_answer_is_not_empty(bin: Path) -> None:
    assert squeue(["flb-a"]) is None
    says(bin, "squeue", "")
    assert squeue(["flb-a"]) == []
    (bin / "squeue").unlink()


def shown(state: str, restarts: int = 0) -> str:
    return f"JobId=17 JobName=flb-a JobState={state} Reason=None Restarts={restarts} PreemptTime=None"


#: What ``scontrol show job 17`` prints, and accounting for 17: the last task of an array has the array's id.
ARRAY = """JobId=17 ArrayJobId=17 ArrayTaskId=2 JobState=TIMEOUT Restarts=0 Command=/a JobState=FAILED
JobId=19 ArrayJobId=17 ArrayTaskId=1 JobState=RUNNING Restarts=3
JobId=18 ArrayJobId=17 ArrayTaskId=0 JobState=OUT_OF_MEMORY Restarts=1"""
ACCOUNTING = "17_2|17|NODE_FAIL\n17_0|18|REQUEUED\n17_0|18|PREEMPTED\n17_1|19|RUNNING"

#: A job's two names, and how it ended by the controller and by accounting.
TASKS = [("17", "17_2", 0, "TIMEOUT", "NODE_FAIL"), ("18", "17_0", 1, "OUT_OF_MEMORY", "PREEMPTED")]


@pytest.mark.parametrize(("raw", "task", "restart", "controller", "accounting"), TASKS)
def test_the_state_is_that_of_the_task_and_of_no_other(
    bin: Path, raw: str, task: str, restart: int, controller: str, accounting: str
) -> None:
    """An older flbench recorded the raw id; the first value of a key counts, since paths come last."""
    says(bin, "scontrol", ARRAY)
    assert state_of(raw, restart) == state_of(task, restart) == controller
    program(bin, "scontrol", "exit 1")
    says(bin, "sacct", ACCOUNTING)
    assert state_of(raw, restart) == state_of(task, restart) == accounting
    assert state_of("17_7", 0) is None


def test_a_live_job_has_no_end_and_accounting_remembers_what_the_controller_has_forgotten(bin: Path) -> None:
    assert state_of("17", 0) is None
    says(bin, "sacct", "17|17|CANCELLED by 1000")
    assert state_of("17", 0) == "CANCELLED"
    for state in ("RUNNING", "PENDING", "COMPLETING", "SUSPENDED"):
        says(bin, "scontrol", shown(state))
        assert state_of("17", 0) is None, state


def test_accounting_reports_the_earlier_run_of_a_requeued_job(bin: Path) -> None:
    says(bin, "scontrol", shown("RUNNING", restarts=2))
    assert state_of("17", 0) == state_of("17", 1) == "REQUEUED"
    says(bin, "sacct", "17|17|PREEMPTED\n17|17|NODE_FAIL\n17|17|RUNNING")
    assert state_of("17", 0) == "PREEMPTED"
    assert state_of("17", 1) == "NODE_FAIL"
    assert state_of("17", 2) is None


def lost(store: Store, experiment: Experiment, **lease: Any) -> tuple[RunDir, Attempt]:
    """Return a run whose worker died in job 17 on another node."""
    there = replace(Lease.here(), host="node7", pid_start="", slurm_job="17", **lease)
    attempt = store.claim(experiment, there)
    assert attempt is not None
    for path in (attempt.path, attempt.path / "lease.json"):
        os.utime(path, (1, 1))
    run = store.run(experiment.run_id)
    assert run.state(experiment).status == "lost"
    return run, attempt


@pytest.mark.parametrize(
    ("state", "checkpoint", "kind", "status", "failures"),
    [
        ("TIMEOUT", False, "timeout", "failed", 1),
        ("DEADLINE", False, "timeout", "failed", 1),
        ("NODE_FAIL", False, "node_fail", "failed", 1),
        ("BOOT_FAIL", False, "node_fail", "failed", 1),
        ("OUT_OF_MEMORY", False, "oom", "failed", 1),
        ("PREEMPTED", False, "preempted", "pending", 0),
        ("CANCELLED", False, "interrupted", "pending", 0),
        ("TIMEOUT", True, "timeout", "pending", 0),
        ("NODE_FAIL", True, "node_fail", "failed", 0),
        *[(state, False, None, "lost", 1) for state in ("RUNNING", "COMPLETED", "FAILED")],
    ],
)
def test_ends_of_jobs_are_classified(
    store: Store, bin: Path, state: str, checkpoint: bool, kind: str | None, status: str, failures: int
) -> None:
    """A job that ended costs a run with progress no attempt; without an answer that explains it, a run stays lost."""
    (experiment,) = experiments()
    run, attempt = lost(store, experiment)
    if checkpoint:
        attempt.save_checkpoint(4, lambda file: file.write(b"[4, 5]"))
    says(bin, "scontrol", shown(state))
    assert record_end(store, run) == (kind is not None)
    found = run.state(experiment)
    assert (found.kind, found.status, found.failures) == (kind, status, failures)
    assert found.claimable(1) == (failures == 0)


def test_memory_is_recognized_in_the_jobs_output(store: Store, bin: Path) -> None:
    (experiment,) = experiments()
    run, attempt = lost(store, experiment)
    says(bin, "scontrol", shown("FAILED"))
    lease = attempt.lease()
    assert lease is not None
    (worker := store.workers / lease.token).mkdir()
    (worker / "log.txt").write_text("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=17.0\n")
    assert record_end(store, run)
    assert run.state(experiment).kind == "oom"


@pytest.mark.parametrize(("memory", "user_fixable"), [("usual", False), ("more", True), ("all", True), (None, False)])
def test_out_of_memory_is_final_at_the_memory_limit(
    store: Store, bin: Path, memory: str | None, user_fixable: bool
) -> None:
    (experiment,) = experiments()
    run, attempt = lost(store, experiment)
    if memory is not None:  # else SLURM killed the job right after the claim, before environment.json was written
        attempt.describe({"memory": memory})
    says(bin, "scontrol", shown("OUT_OF_MEMORY"))
    assert record_end(store, run)
    state = run.state(experiment)
    assert (state.kind, state.user_fixable, state.claimable(3)) == ("oom", user_fixable, not user_fixable)


@pytest.mark.parametrize("job", ["--help", "17;true", "17_", "17_2\n", "", None])
def test_an_invalid_job_id_is_not_passed_to_a_command(store: Store, bin: Path, tmp_path: Path, job: str | None) -> None:
    (experiment,) = experiments()
    run, attempt = lost(store, experiment)
    lease = json.loads((attempt.path / "lease.json").read_text()) | {"slurm_job": job}
    (attempt.path / "lease.json").write_text(json.dumps(lease))
    program(bin, "scontrol", f"touch {tmp_path}/asked")
    assert not record_end(store, run)
    assert not (tmp_path / "asked").exists()


def test_post_mortem_queries_are_rare(store: Store, bin: Path, tmp_path: Path) -> None:
    (experiment,) = experiments()
    run, _ = lost(store, experiment)
    program(bin, "scontrol", f"echo asked >> {tmp_path}/asked; exit 1")
    post_mortem = SlurmPostMortem(store)
    assert not any(post_mortem.explain(run) for _ in range(50))
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_requeued_job_considers_its_earlier_run_dead(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = replace(Lease.here(), host="node7", slurm_job="17", slurm_restart=1)
    (worker := store.workers / elsewhere.token).mkdir()
    (worker / "heartbeat").touch()
    path = worker / "lease.json"
    assert store.liveness.alive(elsewhere, path)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert store.liveness.alive(elsewhere, path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert not store.liveness.alive(elsewhere, path)
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert store.liveness.alive(elsewhere, path)


def test_a_lease_of_an_older_store_is_read(tmp_path: Path) -> None:
    old = Lease.here().to_json()
    del old["slurm_restart"]
    files.replace(tmp_path / "lease.json", strict_json.pretty(old))
    lease = Lease.read(tmp_path / "lease.json")
    assert lease is not None and lease.slurm_restart == 0 and lease.host == socket.gethostname()


def local_time(seconds: float) -> str:
    """Return the time in this many seconds, as SLURM writes it."""
    return datetime.fromtimestamp(time.time() + seconds).isoformat(timespec="seconds")


def test_job_knows_when_to_stop() -> None:
    assert Job.here({}) is None
    assert Job.here({"SLURM_JOB_ID": "17"}) is None  # a job of the user, which flbench does not requeue
    ids = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    environment = {**ids, "FLBENCH_JOB_END": str(int(time.time()) + 100), "FLBENCH_JOB_GRACE": "30"}
    environment["FLBENCH_JOB_LOG"] = "/logs/17.out"
    job = Job.here(environment)
    assert job is not None
    assert (job.job_id, job.restart, job.log) == ("17_2", 0, Path("/logs/17.out"))
    assert abs(job.ends_at - time.monotonic() - 100) < 20
    assert job.stop_reason() is None
    late = Job.here(environment | {"FLBENCH_JOB_GRACE": "200", "SLURM_RESTART_COUNT": "3"})
    assert late is not None and late.restart == 3 and late.stop_reason() == "timeout"


@pytest.mark.parametrize(
    ("preempted", "end", "kind"),
    [
        ("None", 100, None),  # SLURM warns early: the grace of 30 s has not begun
        ("None", 20, "timeout"),  # earlier than in the job's script
        ("None", 1000, None),
        ("None", None, "timeout"),
        ("2026-11-20T14:07:49", 100, "preempted"),
    ],
)
def test_the_controller_explains_a_warning(bin: Path, preempted: str, end: int | None, kind: str | None) -> None:
    ends = "Unknown" if end is None else local_time(end)
    task = f"JobId=17 ArrayJobId=17 ArrayTaskId=2 JobState=RUNNING PreemptTime={preempted} EndTime={ends}"
    other = f"JobId=18 ArrayJobId=17 ArrayTaskId=0 JobState=RUNNING PreemptTime={local_time(0)} EndTime={local_time(0)}"
    says(bin, "scontrol", f"{task}\n{other}")
    job = Job("17_2", 0, time.monotonic() + 100, 30, Path("log"))
    warned = job.after_warning()
    assert job.stop_reason() is None
    assert warned.stop_reason() == kind
    assert warned.ends_at <= job.ends_at


def test_an_unexplained_warning_stops_the_worker(bin: Path) -> None:
    program(bin, "scontrol", "exit 1")
    assert Job("17", 0, time.monotonic() + 100, 30, Path("log")).after_warning().stop_reason() == "timeout"


def test_times_are_requested_in_the_format_that_is_parsed(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    program(bin, "scontrol", f'[[ $SLURM_TIME_FORMAT == standard ]] && echo "JobId=17 EndTime={local_time(100)}"')
    assert Job("17", 0, time.monotonic() + 100, 30, Path("log")).after_warning().stop_reason() is None


class InJob:
    """A worker's main in the last task of array 17; it records requeues."""

    def __init__(self, store: Store, bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self._calls = store, bin / "calls"
        for name, value in {"JOB_ID": "17", "ARRAY_JOB_ID": "17", "ARRAY_TASK_ID": "2"}.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
        monkeypatch.setenv("PREEMPTED", "None")
        monkeypatch.setenv("END", local_time(60))
        monkeypatch.setenv("FLBENCH_JOB_END", str(time.time() + 1000))
        monkeypatch.setenv("FLBENCH_JOB_GRACE", "90")
        monkeypatch.setenv("FLBENCH_JOB_LOG", str(bin / "17.out"))
        shown = "JobId=17 ArrayJobId=17 ArrayTaskId=2 JobState=RUNNING PreemptTime=$PREEMPTED EndTime=$END"
        program(bin, "scontrol", f'echo "$@" >> {self._calls}; echo "{shown}"')

    def work(self, plan: list[Experiment], during: Callable[[int], object] = lambda round: None) -> int:
        def run(experiment: Experiment, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Done:
            rounds = iter(range(1, 1000))

            def stop() -> bool:
                during(next(rounds))
                return should_stop()

            return execute(experiment, attempt, should_stop=stop)

        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}
        try:
            return main([str(self.store.root), write_toy_plan(self.store, plan)], load=lambda _: OneByOne(run))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def requeued(self) -> bool:
        return self._calls.exists() and "requeue 17_2" in self._calls.read_text().splitlines()

    def kinds(self, experiment: Experiment) -> list[str]:
        attempts = self.store.run(experiment.run_id).attempts()
        return [str((attempt.exit() or {}).get("kind")) for attempt in attempts]


@pytest.fixture
def in_job(store: Store, bin: Path, monkeypatch: pytest.MonkeyPatch) -> InJob:
    return InJob(store, bin, monkeypatch)


def send(number: signal.Signals) -> Callable[[int], None]:
    def act(round: int) -> None:
        if round == 6:
            os.kill(os.getpid(), number)

    return act


def test_worker_stops_before_the_wall_time_and_requeues_its_job(in_job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments(1)
    short = chain([None] * 8, repeat("timeout"))  # the wall time ends during the run
    monkeypatch.setattr("flbench.slurm.job.Job.stop_reason", lambda job: next(short))
    assert in_job.work(plan) == REQUEUE
    assert in_job.kinds(plan[0]) == ["timeout"]
    assert in_job.store.run(plan[0].run_id).state(plan[0]).status == "pending"
    assert in_job.requeued


def test_worker_resumes_its_run_in_the_requeued_job(in_job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments(1)
    assert in_job.work(plan, send(signal.SIGUSR2)) == REQUEUE
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert in_job.work(plan) == 0
    assert in_job.store.run(plan[0].run_id).metrics() == undisturbed(plan[0])
    assert in_job.kinds(plan[0]) == ["timeout", "ok"]


@pytest.mark.parametrize(
    ("number", "variables", "kind", "requeued"),
    [
        (None, {}, "ok", False),
        (signal.SIGUSR2, {"END": 1000}, "ok", False),  # an early warning
        (signal.SIGUSR2, {"PREEMPTED": "2026-11-20T14:07:49"}, "preempted", True),
        (signal.SIGTERM, {}, "interrupted", False),  # the user cancels the job
        (signal.SIGINT, {}, "interrupted", False),
    ],
)
def test_ends_of_workers_in_jobs(
    in_job: InJob,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals | None,
    variables: dict[str, Any],
    kind: str,
    requeued: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, local_time(value) if name == "END" else value)
    plan = experiments(1)
    code = in_job.work(plan, send(number) if number else lambda round: None)
    assert (code, in_job.kinds(plan[0]), in_job.requeued) == (0 if kind == "ok" else REQUEUE, [kind], requeued)


def test_a_warning_at_the_end_of_the_wall_time_takes_no_time(in_job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that takes a minute to answer would use up the grace period."""
    monkeypatch.setattr("flbench.slurm.job.Job.after_warning", lambda job: pytest.fail("asked"))
    plan = experiments(1)

    def warn_late(round: int) -> None:
        if round == 6:
            monkeypatch.setattr("flbench.slurm.job.Job.stop_reason", lambda job: "timeout")
            os.kill(os.getpid(), signal.SIGUSR2)

    assert in_job.work(plan, warn_late) == REQUEUE
    assert in_job.kinds(plan[0]) == ["timeout"]
    assert in_job.requeued


def test_a_wall_time_too_short_to_start_is_not_retried(in_job: InJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_JOB_END", str(time.time() + 10))
    monkeypatch.setenv("FLBENCH_JOB_GRACE", "60")
    assert in_job.work(experiments(1)) == REQUEUE
    assert not in_job.requeued


def test_runs_that_need_more_memory_wait_for_workers_that_have_it(store: Store) -> None:
    plan = experiments(3)
    for experiment in (plan[0], plan[2]):
        attempt = claim(store, experiment)
        attempt.end("oom", "too large")

    def go(options: Options) -> int:
        return work(store, Plan.of(plan), Lease.here(), options, should_stop=lambda: False, load=lambda _: OneByOne())

    assert go(Options(memory="usual")) == 1
    assert go(Options(memory="more")) == 2


@pytest.mark.parametrize(("memory", "user_fixable"), [("usual", False), ("more", True), ("all", True)])
def test_memory_error_in_a_job_is_retried_once_with_more_memory(store: Store, memory: Any, user_fixable: bool) -> None:
    (experiment,) = experiments(1, lr=0.102)
    options = Options(memory=memory)
    work(store, Plan.of([experiment]), Lease.here(), options, should_stop=lambda: False, load=lambda _: OneByOne())
    state = store.run(experiment.run_id).state(experiment)
    assert (state.kind, state.attempts, state.user_fixable) == ("oom", 1, user_fixable)
