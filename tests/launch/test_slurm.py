"""The SLURM launcher with scripts in place of SLURM's programs; ``tests/slurm`` uses the real programs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from flbench.errors import UserError
from flbench.launch import WorkersCrash
from flbench.launch.sbatch import Array, Request, require_loggable
from flbench.launch.slurm import SlurmLauncher, script, worker_command
from flbench.launch.submissions import Submission
from flbench.launchers import cancel
from flbench.slurm import Row, squeue
from flbench.store import Heartbeat, Lease, Store, files, strict_json
from flbench.worker import Options
from tests.launch.programs import program, says

PLAN = "toy/0123456789abcdef"

#: Records its calls, and returns consecutive job ids.
SBATCH = """
echo "sbatch $SLURM_JOB_ID" >> {calls}
number=$(grep -c sbatch {calls})
cp "$1" {scripts}/$number.sh
echo "Submitted batch job $((100 + number))"
"""


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that precedes the search path, without SLURM's own programs."""
    (directory := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    (tmp_path / "scripts").mkdir()
    for name in ("squeue", "scontrol", "sacct", "scancel", "sbatch"):
        program(directory, name, "exit 1")
    program(directory, "sbatch", SBATCH.format(calls=tmp_path / "calls", scripts=tmp_path / "scripts"))
    return directory


@pytest.fixture(autouse=True)
def asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.launch.slurm.POLL_SECONDS", 0.0)
    monkeypatch.setattr("flbench.launch.slurm.POLL_PAUSE_FACTOR", 0.0)


def launcher(store: Store, workers: int = 8, **request: object) -> SlurmLauncher:
    return SlurmLauncher(store, PLAN, Options(), Request(seconds=600, **request), workers=workers)  # type: ignore[arg-type]


def queue_shows(bin: Path, *rows: str) -> None:
    """Return rows of the queue from (name, state[, job[, nodes]]), joined by spaces."""
    lines = []
    for task, row in enumerate(rows):
        name, state, job, nodes = [*row.split(), "101", ""][:4] if len(row.split()) < 4 else row.split()
        lines.append(f"{job}|{task}|{state}|{nodes}|{name}")
    says(bin, "squeue", "\n".join(lines))


def test_script_requests_what_the_profile_sets(tmp_path: Path) -> None:
    request = Request(
        seconds=5400,
        grace=120,
        cpus=4,
        gres="gpu:a100:1",
        mem=3 * 2**30,
        partition="long",
        account="me",
        qos="high",
        constraint="a100|h100",
        exclude="n[1-2]",
        setup=("module load cuda",),
        parallel=3,
    )
    text = script(tmp_path / "store", PLAN, Options(device="cuda", pool=4), request, tasks=10)
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    for line in (
        "--array=0-9%3", "--cpus-per-task=4", "--gres=gpu:a100:1", "--mem=3072M", "--partition=long", "--account=me",
        "--qos=high", "--constraint='a100|h100'", "--exclude='n[1-2]'", "--time=90", "--signal=USR2@120", "--requeue",
        "--open-mode=append",
    ):  # fmt: skip
        assert f"#SBATCH {line}" in lines, line
    assert "wckey" not in text
    assert lines.index("module load cuda") < next(i for i, line in enumerate(lines) if line.startswith("srun "))
    assert "FLBENCH_JOB_END=$(($(date +%s) + 5400)) FLBENCH_JOB_GRACE=120" in text
    worker = f"{sys.executable} -m flbench.worker {tmp_path}/store {PLAN} --device=cuda"
    assert f"""sh -c 'trap "" USR2; exec "$0" "$@"' {worker}""" in lines[-1]
    assert "--cpus-per-task=4 " in lines[-1]
    assert "--workers=10" in lines[-1]
    assert "--memory=usual" in lines[-1]
    assert lines[-1].endswith('"--offset=$((0 + SLURM_ARRAY_TASK_ID))"')
    assert "pickle" not in text and "submitit.core" not in text


#: Variables of a calling shell by which sbatch or srun would change the script, and such as add to it.
DECIDED = {
    "SBATCH_TIMELIMIT": "1", "SBATCH_MEM_PER_CPU": "1M", "SBATCH_MEM_PER_NODE": "1M", "SBATCH_JOB_NAME": "mine",
    "SBATCH_ARRAY_INX": "0-99", "SBATCH_OUTPUT": "/dev/null", "SBATCH_ERROR": "/dev/null", "SBATCH_NO_REQUEUE": "1",
    "SBATCH_SIGNAL": "KILL@9", "SBATCH_OPEN_MODE": "truncate", "SBATCH_PARTITION": "other", "SBATCH_WAIT": "1",
    "SBATCH_CPUS_PER_GPU": "9", "SRUN_CPUS_PER_TASK": "9", "SRUN_EXPORT_ENV": "NONE", "SLURM_TIMELIMIT": "1",
}  # fmt: skip
ADDED = {"SBATCH_ACCOUNT": "ours", "SBATCH_RESERVATION": "a\nb", "SBATCH_EXPORT": "NONE", "SBATCH_GPUS": "1"}


def test_the_profile_wins_over_the_shell_and_the_rest_stays(
    store: Store, bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (DECIDED | ADDED).items():
        monkeypatch.setenv(name, value)
    program(bin, "sbatch", f"env -0 > {tmp_path}/environment; echo Submitted batch job 7")
    request = Request(seconds=600, mem=2**30, partition="main")
    SlurmLauncher(store, PLAN, Options(), request, workers=1).start(1)
    pairs = (item.partition("=") for item in (tmp_path / "environment").read_text().split("\0"))
    inherited = {name: value for name, _, value in pairs if name in DECIDED | ADDED}
    assert inherited == ADDED
    lines = script(store.root, PLAN, Options(), request, tasks=1).splitlines()
    added = "SBATCH_ACCOUNT='ours', SBATCH_EXPORT='NONE', SBATCH_GPUS='1', SBATCH_RESERVATION='a\\nb'"
    assert f"# From this shell, sbatch also reads {added}" in lines
    decided = ", ".join(sorted(name for name in DECIDED if name != "SLURM_TIMELIMIT"))
    assert f"# From this shell, sbatch does not get {decided}: this script decides" in lines


@pytest.mark.parametrize(
    ("request_", "decided"),
    [
        (Request(600), []),
        (Request(600, gpus=1), ["SBATCH_GPUS", "SBATCH_GRES"]),
        (Request(600, gres="gpu:1"), ["SBATCH_GPUS", "SBATCH_GRES"]),
        (Request(600, account="a", qos="q"), ["SBATCH_ACCOUNT", "SBATCH_QOS"]),
        (Request(600, constraint="c", exclude="n1"), ["SBATCH_CONSTRAINT", "SBATCH_EXCLUDE"]),
        (Request(600, mem=1), ["SBATCH_MEM_PER_GPU"]),
    ],
)
def test_a_variable_is_hidden_only_if_the_profile_sets_its_option(request_: Request, decided: list[str]) -> None:
    names = ["ACCOUNT", "CONSTRAINT", "EXCLUDE", "GPUS", "GRES", "MEM_PER_GPU", "QOS"]
    text = Array(Path("/s"), "flb-a", 1, request_, "true").script({f"SBATCH_{name}": "x" for name in names})
    assert [name for name in names if f"SBATCH_{name}='x'" not in text] == [name[7:] for name in decided]


def test_a_percent_sign_in_the_stores_path_is_no_pattern(tmp_path: Path) -> None:
    store = tmp_path / "50%j it's"
    lines = script(store, PLAN, Options(), Request(seconds=600), tasks=1).splitlines()
    (output,) = (line for line in lines if line.startswith("#SBATCH --output="))
    pattern = f"{tmp_path}/50%%j it's/submissions/ID/%A_%a_0_log.out"
    assert shlex.split(output.partition("=")[2]) == [pattern]
    step = shlex.split(lines[-1])
    assert step[step.index("--output") + 1] == pattern
    assert f"FLBENCH_JOB_LOG={shlex.quote(f'{store}/submissions/ID')}/" in "\n".join(lines)


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\x7fb", "a\\b"])
def test_a_path_that_no_script_can_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"a SLURM job cannot write its log to a path with '.*'; name another by"):
        require_loggable(tmp_path / name / "store")


def test_a_warning_during_start_up_does_not_kill_the_worker(tmp_path: Path) -> None:
    program = (
        sys.executable,
        "-c",
        "import os, signal, sys; os.kill(os.getpid(), signal.SIGUSR2); print(sys.argv[1:])",
    )
    command = worker_command(tmp_path / "a store", PLAN, Options(device="cuda"), 4, program)
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    argv = literal_eval(done.stdout)
    assert (argv[:2], argv[-1]) == ([f"{tmp_path}/a store", PLAN], "--offset=7")


def test_arrays_are_split_and_numbered_consecutively(store: Store, bin: Path, tmp_path: Path) -> None:
    says(bin, "scontrol", "MaxArraySize            = 4")
    launcher(store, workers=10).start(10)
    scripts = [path.read_text() for path in sorted((tmp_path / "scripts").iterdir())]
    assert [text.partition("--array=")[2].split("%")[0] for text in scripts] == ["0-3", "0-3", "0-1"]
    assert [text.partition("--offset=$((")[2].split(" ")[0] for text in scripts] == ["0", "4", "8"]
    submissions = Submission.of_plan(store, PLAN)
    assert sorted(submission.tasks for submission in submissions) == [2, 4, 4]
    assert {submission.job_id for submission in submissions} == {"101", "102", "103"}


def test_the_store_contains_nothing_executable(store: Store, bin: Path) -> None:
    launcher(store).start(2)
    names = [path.name for path in store.root.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith((".pkl", ".pickle"))]


def test_submission_is_in_the_store_before_sbatch_is_called(store: Store, bin: Path, tmp_path: Path) -> None:
    program(bin, "sbatch", f"cat {store.root}/submissions/*/intent.json > {tmp_path}/seen; echo Submitted batch job 7")
    launcher(store).start(3)
    seen = json.loads((tmp_path / "seen").read_text())
    (submission,) = Submission.of_plan(store, PLAN)
    assert (seen["name"], seen["plan"], seen["tasks"]) == (submission.name, PLAN, 3)
    assert submission.job_id == "7"


def test_jobs_of_a_dead_launcher_are_adopted_by_name(store: Store, bin: Path) -> None:
    orphan = Submission.create(store, PLAN, 2)
    kill(orphan)
    queue_shows(bin, f"{orphan.name} RUNNING", f"{orphan.name} PENDING")
    assert launcher(store).alive() == 2
    assert orphan.job_id == "101"


def test_a_planned_submission_without_a_job_is_dropped_unless_its_launcher_lives(store: Store, bin: Path) -> None:
    dead, live = Submission.create(store, PLAN, 2), Submission.create(store, PLAN, 3)
    kill(dead)
    says(bin, "squeue", "")
    assert launcher(store).alive() == 3
    assert Submission.of_plan(store, PLAN) == [live]


def kill(submission: Submission) -> None:
    """Replace the launcher of a submission by a process that has ended."""
    lease = Lease.here().to_json() | {"pid_start": "1"}
    files.replace(submission.folder / "lease.json", strict_json.pretty(lease))


def test_other_plans_jobs_are_left_alone(store: Store, bin: Path) -> None:
    Submission.create(store, "other/0123456789abcdef", 2)
    assert launcher(store).alive() == 0
    assert launcher(store).crash_log() == ""


def test_a_silent_controller_changes_nothing(store: Store, bin: Path) -> None:
    jobs = launcher(store)
    jobs.start(3)
    (submission,) = Submission.of_plan(store, PLAN)
    queue_shows(bin, *[f"{submission.name} RUNNING"] * 2, f"{submission.name} COMPLETED")
    assert jobs.alive() == 2
    program(bin, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert jobs.alive() == 2
    assert launcher(store).alive() == 3  # a launcher without an earlier answer counts all of them
    queue_shows(bin, *[f"{submission.name} COMPLETED"] * 3)
    assert jobs.alive() == 0
    assert Submission.of_plan(store, PLAN) == []


def test_a_refusal_is_reported_and_leaves_no_pending_job(store: Store, bin: Path) -> None:
    program(bin, "sbatch", "echo 'sbatch: error: invalid partition specified: gpuu' >&2; exit 1")
    with pytest.raises(UserError, match=r"SLURM refuses the job: .*invalid partition specified: gpuu"):
        launcher(store).start(2)
    assert Submission.of_plan(store, PLAN) == []


def test_missing_slurm_is_reported(store: Store, bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bin / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(bin))
    with pytest.raises(UserError, match="sbatch cannot be called"):
        launcher(store).start(1)
    assert Submission.of_plan(store, PLAN) == []


def test_busy_controller_is_given_time(store: Store, bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        bin, "sbatch", "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv' >&2; exit 1"
    )
    jobs = launcher(store, workers=5)
    assert jobs.start(2) == 0
    assert "Socket timed out" in jobs.delayed
    assert jobs.alive() == 2  # the controller may have accepted them
    monkeypatch.setattr("flbench.launch.slurm.time.monotonic", lambda: 1e9)
    assert jobs.delayed == ""


#: What sbatch prints while a partition is drained or inactive.
DRAINED = "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)"


def test_a_partition_that_is_drained_is_waited_for(
    store: Store, bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = (bin / "sbatch").read_text()
    program(bin, "sbatch", f"echo '{DRAINED}' >&2; exit 1")
    jobs = launcher(store, workers=5)
    assert (jobs.start(2), jobs.alive()) == (0, 0)
    assert jobs.delayed == f"SLURM takes no jobs now ({DRAINED})"
    monkeypatch.setattr("flbench.launch.slurm.RETRY_SECONDS", 0.0)
    assert jobs.start(2) == 0  # not before it is time to ask again
    monkeypatch.setattr(jobs, "_refused_until", 0.0)
    (bin / "sbatch").write_text(accepts)
    assert (jobs.start(2), jobs.delayed) == (2, "")


@pytest.mark.parametrize(
    ("state", "log"),
    [
        ("OUT_OF_MEMORY", "Killed"),
        ("FAILED", "slurmstepd: error: Exceeded memory limit\nStepId=21.0 exceeded memory limit (4 > 2), being killed"),
        ("FAILED", "ImportError: libtorch.so: failed to map segment from shared object: Cannot allocate memory"),
    ],
)
def test_a_job_without_the_memory_to_start_names_mem(store: Store, bin: Path, state: str, log: str) -> None:
    jobs = launcher(store, mem=100 * 2**20)
    jobs.start(1)
    (submission,) = Submission.of_plan(store, PLAN)
    (submission.folder / "101_0_0_log.out").write_text(log)
    queue_shows(bin, f"{submission.name} {state}")
    jobs.alive()
    text = jobs.crash_log()
    assert "does not have the memory that a worker needs to start (mem is 100 MiB" in text
    assert "raise mem in the profile; " in text and text.endswith(log)


def test_the_users_defaults_hide_no_jobs(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_USERS", "SQUEUE_STATES", "SACCT_FEDERATION"):
        monkeypatch.setenv(name, "x")
    program(bin, "squeue", 'echo "7|0|RUNNING|${SQUEUE_USERS}${SQUEUE_STATES}${SACCT_FEDERATION}|flb-a"')
    assert squeue(["flb-a"]) == [Row("7", "0", "RUNNING", "", "flb-a")]


def test_nothing_is_submitted_after_a_refusal(store: Store, bin: Path) -> None:
    says(bin, "scontrol", "MaxArraySize            = 2")
    program(bin, "sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    launcher(store).start(6)
    assert [submission.tasks for submission in Submission.of_plan(store, PLAN)] == [2]


def test_a_limit_on_jobs_is_waited_out_while_own_jobs_run(store: Store, bin: Path) -> None:
    jobs = launcher(store)
    jobs.start(1)
    program(bin, "sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    assert jobs.start(1) == 0
    assert "QOSMaxSubmitJobPerUserLimit" in jobs.delayed
    with pytest.raises(UserError, match="QOSMaxSubmitJobPerUserLimit"):
        launcher(Store(store.root.with_name("second"))).start(1)


def test_jobs_cancelled_by_the_user_are_not_replaced(store: Store, bin: Path) -> None:
    jobs = launcher(store)
    jobs.start(1)
    (submission,) = Submission.of_plan(store, PLAN)
    queue_shows(bin, f"{submission.name} CANCELLED")
    assert jobs.alive() == 0
    with pytest.raises(WorkersCrash, match="cancelled with scancel"):
        jobs.start(1)
    launcher(store).start(1)  # the next command submits again


def test_scancel_of_one_task_is_not_undone(store: Store, bin: Path) -> None:
    jobs = launcher(store)
    jobs.start(3)
    (submission,) = Submission.of_plan(store, PLAN)
    queue_shows(bin, *[f"{submission.name} RUNNING"] * 3)
    assert (jobs.alive(), jobs.slots) == (3, 8)
    queue_shows(bin, f"{submission.name} RUNNING", f"{submission.name} CANCELLED", f"{submission.name} COMPLETED")
    assert (jobs.alive(), jobs.slots) == (1, 0), "the others go on, and no job takes the place of the cancelled one"
    adopting = launcher(store)
    assert (adopting.alive(), adopting.slots) == (1, 8), "what was cancelled before this sweep began does not matter"
    queue_shows(bin, f"{submission.name} COMPLETED", f"{submission.name} CANCELLED", f"{submission.name} COMPLETED")
    assert (jobs.alive(), adopting.alive()) == (0, 0)
    with pytest.raises(WorkersCrash, match="cancelled with scancel"):
        jobs.start(1)
    adopting.start(1)


def test_failed_nodes_are_avoided(store: Store, bin: Path, tmp_path: Path) -> None:
    jobs = launcher(store, exclude="n7")
    jobs.start(1)
    (submission,) = Submission.of_plan(store, PLAN)
    queue_shows(bin, f"{submission.name} NODE_FAIL 101 n3")
    assert jobs.alive() == 0
    jobs.start(1)
    assert "--exclude=n7,n3" in (tmp_path / "scripts" / "2.sh").read_text()


def test_runs_out_of_memory_get_workers_with_twice_the_memory(store: Store, bin: Path, tmp_path: Path) -> None:
    launcher(store, mem=2**30).start(5, out_of_memory=2)
    more, usual = ((tmp_path / "scripts" / f"{number}.sh").read_text() for number in (1, 2))
    assert "--mem=2048M" in more and "--memory=more" in more and "--array=0-1%" in more
    assert "--mem=1024M" in usual and "--memory=usual" in usual and "--array=0-2%" in usual


def test_without_a_memory_limit_nothing_is_doubled(store: Store, bin: Path, tmp_path: Path) -> None:
    launcher(store).start(2, out_of_memory=2)
    text = (tmp_path / "scripts" / "1.sh").read_text()
    assert "--mem=" not in text and "--memory=all" in text and "--array=0-1%" in text


def test_variables_of_an_outer_job_and_secrets_are_not_passed_on(
    store: Store, bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_CONF", "/some/slurm.conf")
    monkeypatch.setenv("SLURM_JWT", "token-for-slurm")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    program(bin, "sbatch", f"env > {tmp_path}/environment; echo Submitted batch job 7")
    launcher(store).start(1)
    environment = (tmp_path / "environment").read_text()
    assert "SLURM_JOB_ID" not in environment
    assert "SLURM_CONF=/some/slurm.conf" in environment
    assert "SLURM_JWT" in environment
    assert "0123456789" not in environment
    assert (os.environ["SLURM_JOB_ID"], os.environ["WANDB_API_KEY"]) == ("42", "0123456789")


def test_draining_cancels_queued_jobs_and_stops_running_ones(store: Store, bin: Path, tmp_path: Path) -> None:
    jobs = launcher(store)
    jobs.start(1)
    (submission,) = Submission.of_plan(store, PLAN)
    program(bin, "scancel", f'echo "$@" >> {tmp_path}/cancelled')
    jobs.drain()
    jobs.kill()
    assert (tmp_path / "cancelled").read_text().splitlines() == [
        f"--state=PENDING --name={submission.name}",
        f"--state=RUNNING --signal=TERM --name={submission.name}",
        f"--name={submission.name}",
    ]


def test_jobs_killed_by_the_user_cost_no_attempt(store: Store, bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM forgets ended jobs and may have no accounting, so the reason is recorded in the store."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    ours, others = Lease.here(), Lease.here()
    with Heartbeat(store.workers, ours, PLAN), Heartbeat(store.workers, others, "other/0123456789abcdef"):
        launcher(store).kill()
        end = store.liveness.recorded_end(ours)
        assert end is not None and end["kind"] == "interrupted"
        assert store.liveness.recorded_end(others) is None


def test_cancel_command_cancels_queued_jobs(store: Store, bin: Path, tmp_path: Path) -> None:
    (store.sweeps / PLAN).mkdir(parents=True)
    assert cancel(store, PLAN) == []
    launcher(store).start(1)
    program(bin, "scancel", f'echo "$@" >> {tmp_path}/cancelled')
    assert cancel(store, PLAN) == ["cancelled the jobs that were queued in SLURM"]
    assert (tmp_path / "cancelled").read_text().startswith("--state=PENDING --name=flb-")


def test_newest_log_is_quoted(store: Store, bin: Path) -> None:
    launcher(store).start(1)
    (submission,) = Submission.of_plan(store, PLAN)
    (submission.folder / "101_0_0_log.out").write_text("one\ntwo\n")
    words = launcher(store).crash_log()
    assert words.endswith("101_0_0_log.out ends with:\none\ntwo")
