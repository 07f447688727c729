"""Workers as array jobs of a SLURM cluster, submitted by submitit.

A job runs ``python -m flbench.worker``, as on any machine: what is submitted is a command line and never a pickle, so
that nothing in the store can execute code, no job waits for a file that its launcher did not live to write, and nobody
but the worker handles the job's signals.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.choices import Memory
from flbench.errors import UserError
from flbench.launch import WorkersCrash, end_of_log, record_user_kill
from flbench.launch.local import ONE_THREAD, WORKER
from flbench.launch.submissions import Submission
from flbench.slurm import Row, config_value, scancel, squeue
from flbench.slurm.job import GRACE, JOB_END, LOG
from flbench.store import Store
from flbench.store.secrets import is_secret
from flbench.worker import Options

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor

#: Seconds between two questions to the controller, at least.
PERIOD = 2.0

#: How many times as long as it took to answer the controller is left alone afterwards.
REST = 10.0

#: Seconds without questions after SLURM refused a job for a reason that may pass.
PATIENCE = 30.0

#: How many times as much memory the jobs get whose runs ran out of it.
MORE_MEMORY = 2

#: Most tasks of an array where SLURM does not say.
ARRAY_SIZE = 1000

#: What of SLURM's environment a job may inherit from a launcher that is itself in a job.
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")

#: What a shell does before it becomes the worker: a warning that came while Python starts would kill it. It need not be
#: heard then: the worker knows when the walltime ends, and what follows a preemption's warning is SIGTERM.
DEAF = 'trap "" USR2; exec "$0" "$@"'

#: What sbatch says when the same call may succeed later.
PASSING = ("timed out", "Unable to contact", "temporarily", "Connection refused", "SubmitJob")


@dataclass(frozen=True)
class Request:
    """What each job asks SLURM for; None: whatever the cluster's default is.

    Attributes:
        seconds: walltime.
        grace: how many seconds before its end a worker comes to its own.
        mem: bytes.
        setup: shell lines that the job executes before the worker.
        parallel: most tasks of an array at a time.
    """

    seconds: int
    grace: int = 90
    cpus: int = 1
    gpus: int | None = None
    gres: str | None = None
    mem: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    setup: tuple[str, ...] = ()
    parallel: int | None = None

    @property
    def has_gpus(self) -> bool:
        """Whether workers get GPUs."""
        return bool(self.gpus) or "gpu" in (self.gres or "")

    def with_more_memory(self) -> Request:
        """The same, for runs that ran out of memory."""
        return self if self.mem is None else replace(self, mem=MORE_MEMORY * self.mem)

    def without(self, nodes: set[str]) -> Request:
        """The same, on other nodes."""
        return replace(self, exclude=",".join(filter(None, [self.exclude, *sorted(nodes)])) or None)


class SlurmLauncher:
    """Submits workers, and knows by name every job of its plan, whoever submitted it."""

    def __init__(
        self,
        store: Store,
        plan: str,
        options: Options,
        request: Request,
        *,
        workers: int,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._workers, self._command = workers, command
        self._store, self._plan, self._options, self._request = store, plan, options, request
        self._rows: dict[str, list[Row]] = {}
        self._asked, self._pause, self._refused_until = -math.inf, 0.0, -math.inf
        self._seen: set[str] = set()  # submissions whose jobs were seen alive
        self._ended_before: dict[str, set[str]] = {}  # by submission, the tasks that had ended at the first look
        self._failed_nodes: set[str] = set()
        self._cancelled = False

    @property
    def slots(self) -> int:
        """How many workers were asked for; none for a while after SLURM would take no more, and after a ``scancel``."""
        return self._workers if time.monotonic() >= self._refused_until and not self._cancelled else 0

    def start(self, count: int, out_of_memory: int = 0) -> None:
        """Submit ``count`` workers in arrays as large as SLURM allows; ``out_of_memory`` of them get more memory.

        Raises:
            UserError: SLURM refuses the jobs.
            WorkersCrash: the user cancelled a job of the plan, and no other is left.
        """
        if self._cancelled:
            raise WorkersCrash("jobs of this sweep were cancelled with scancel; the same command goes on with it")
        largest = max(1, int(config_value("MaxArraySize") or ARRAY_SIZE))
        more = out_of_memory if self._request.mem is not None else 0
        for wanted, more_memory in ((more, True), (count - more, False)):
            for begin in range(0, wanted, largest):
                if self.slots:  # SLURM has taken all so far
                    self._submit(begin, min(largest, wanted - begin), more_memory)

    def alive(self) -> int:
        """How many jobs of the plan are queued or run; while SLURM does not answer, as many as before."""
        self._look()
        return sum(self._size(submission) for submission in self._open())

    def tokens(self) -> set[str]:
        """The names of the workers in SLURM jobs, whoever submitted those: they are counted as jobs."""
        return {worker.lease.token for worker in self._store.live_workers() if worker.lease.slurm_job is not None}

    def drain(self) -> None:
        """Take back what is queued, and ask running workers to stop at the end of their round."""
        names = self._names()
        if names:
            scancel("--state=PENDING", names)
            scancel("--state=RUNNING", "--signal=TERM", names)
        self._forget()

    def kill(self) -> None:
        """Cancel every job, after recording that the user asked for it: SLURM soon forgets why a job ended."""
        for worker in self._store.live_workers():
            if worker.plan == self._plan and worker.lease.slurm_job is not None:
                record_user_kill(self._store, worker.lease.token)
        if names := self._names():
            scancel(names)
        self._forget()

    def crash_log(self) -> str:
        """The end of the newest log of a job of this plan."""
        ours = (found for found in Submission.all(self._store, ended=True) if found.plan == self._plan)
        logs = [log for submission in ours for log in submission.logs()]
        if not logs:
            return ""
        return end_of_log(max(logs, key=lambda log: log.stat().st_mtime))

    def _submit(self, begin: int, tasks: int, more_memory: bool) -> None:
        request = self._request.without(self._failed_nodes)
        if more_memory:
            request = request.with_more_memory()
        options = replace(self._options, memory=memory_of(request, more_memory), workers=self._workers)
        submission = Submission.begin(self._store, self._plan, tasks, memory=options.memory)
        worker = Worker(self._store.root, self._plan, options, begin, self._command)
        executor = executor_for(submission.folder, submission.name, request, tasks)
        try:
            with own_environment():
                job = executor._submit_command(worker.command())
        except OSError as error:
            submission.end()
            raise UserError(f"sbatch cannot be called ({error.strerror}): is this machine part of a cluster?") from None
        except Exception as error:  # submitit knows several, and each says what sbatch said
            self._refused(submission, str(error))
        else:
            submission.became(job.job_id)
            self._seen.add(submission.name)
            self._ended_before[submission.name] = set()
            self._forget()

    def _refused(self, submission: Submission, why: str) -> None:
        """Go on later where that may help: then, it may even be that SLURM took the job."""
        full = "SubmitJob" in why  # so many jobs and no more, of which some are ours: they will end
        if any(reason in why for reason in PASSING) and (self._seen or not full):
            submission.release()
            self._refused_until = time.monotonic() + PATIENCE
            return
        submission.end()
        lines = [line for line in why.splitlines() if "sbatch" in line and "rror" in line] or why.splitlines()[-1:]
        raise UserError(f"SLURM refuses the job: {' '.join(lines)}; {submission.folder} has its script")

    def _look(self) -> None:
        """Bring up to date what is known of the jobs, unless it was asked for a moment ago."""
        began = time.monotonic()
        if began < self._asked + self._pause:
            return
        submissions = self._open()
        rows = squeue(submission.name for submission in submissions) if submissions else []
        self._asked = time.monotonic()
        self._pause = max(PERIOD, REST * (self._asked - began))
        if rows is None:
            return
        self._rows = {submission.name: [] for submission in submissions}
        for row in rows:
            self._rows.setdefault(row.name, []).append(row)
        for submission in submissions:
            self._settle(submission, self._rows[submission.name])

    def _settle(self, submission: Submission, rows: list[Row]) -> None:
        """Adopt a job whose launcher died before it wrote down the id; see which submissions have ended, and how."""
        if rows and submission.job_id is None:
            submission.became(rows[0].job)
        self._failed_nodes |= {row.nodes for row in rows if row.state == "NODE_FAIL" and row.nodes}
        # One cancelled task is enough: a job submitted in its place would undo what the user did.
        before = self._ended_before.setdefault(submission.name, {row.task for row in rows if not row.alive})
        self._cancelled |= any(row.state == "CANCELLED" and row.task not in before for row in rows)
        if any(row.alive for row in rows):
            self._seen.add(submission.name)
        elif not submission.is_being_made(self._store):
            submission.end()

    def _size(self, submission: Submission) -> int:
        """How many workers of a submission are queued or run, as far as one knows."""
        rows = self._rows.get(submission.name)
        return submission.tasks if not rows else sum(row.alive for row in rows)

    def _open(self) -> list[Submission]:
        return Submission.of_plan(self._store, self._plan)

    def _names(self) -> str:
        names = ",".join(submission.name for submission in self._open())
        return f"--name={names}" if names else ""

    def _forget(self) -> None:
        """Ask again at the next occasion."""
        self._asked = -math.inf


@dataclass(frozen=True)
class Worker:
    """The command line of an array's workers; ``begin`` counts those of earlier arrays."""

    store: Path
    plan: str
    options: Options
    begin: int = 0
    program: Sequence[str] = WORKER

    def command(self) -> str:
        """A shell command, in which each task begins elsewhere in the plan."""
        options = [option for option in self.options.to_argv() if not option.startswith("--offset=")]
        command = ["sh", "-c", DEAF, *self.program, str(self.store.absolute()), self.plan, *options]
        return f'{shlex.join(command)} "--offset=$(({self.begin} + SLURM_ARRAY_TASK_ID))"'


def memory_of(request: Request, more: bool) -> Memory:
    """How much a worker has, in its own words."""
    if request.mem is None:
        return "all"
    return "more" if more else "usual"


def cancel(store: Store, plan: str) -> str:
    """Take back the queued jobs of a plan; those that run are left to the mark in the store."""
    names = ",".join(submission.name for submission in Submission.of_plan(store, plan))
    if not names:
        return ""
    if scancel("--state=PENDING", f"--name={names}"):
        return "cancelled the jobs that are queued in SLURM"
    return "scancel does not answer: what is queued in SLURM will end as soon as it begins"


def executor_for(folder: Path, name: str, request: Request, tasks: int) -> SlurmExecutor:
    """The submitit executor of one array."""
    from submitit.slurm.slurm import SlurmExecutor

    class Anywhere(SlurmExecutor):
        """Writes scripts on machines without SLURM, too."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    executor = Anywhere(folder.absolute())
    executor.update_parameters(**parameters(folder.absolute(), name, request))
    executor.parameters["map_count"] = tasks
    return executor


def parameters(folder: Path, name: str, request: Request) -> dict[str, Any]:
    """The same as submitit names it."""
    given = {
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "gpus_per_node": request.gpus,
        "gres": request.gres,
        "mem": None if request.mem is None else f"{math.ceil(request.mem / 2**20)}M",
        "constraint": request.constraint,
        "exclude": request.exclude,
        "array_parallelism": request.parallel,
    }
    return {
        **{key: value for key, value in given.items() if value is not None},
        "job_name": name,
        "time": math.ceil(request.seconds / 60),
        "ntasks_per_node": 1,
        "cpus_per_task": request.cpus,
        "srun_args": [f"--cpus-per-task={request.cpus}"],  # since SLURM 22.05 a step does not inherit them
        "signal_delay_s": request.grace,
        "stderr_to_stdout": True,
        "wckey": None,
        "additional_parameters": {"requeue": True},
        "setup": [*own_setup(folder, request), *request.setup],
    }


def own_setup(folder: Path, request: Request) -> list[str]:
    """What a worker is told by way of the environment; the first line, so that setup's time counts as well."""
    log = f"{shlex.quote(str(folder))}/${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}_0_log.out"
    seconds = 60 * math.ceil(request.seconds / 60)
    return [
        f"export {JOB_END}=$(($(date +%s) + {seconds})) {GRACE}={request.grace} {LOG}={log}",
        f"export {' '.join(f'{name}={value}' for name, value in ONE_THREAD.items())}",
    ]


def script(store: Path, plan: str, options: Options, request: Request, tasks: int) -> str:
    """The script that sbatch would get, for people to read."""
    worker = Worker(store, plan, replace(options, memory=memory_of(request, more=False), workers=tasks))
    executor = executor_for(store / "submissions" / "ID", "flb-ID", request, tasks)
    return executor._make_submission_file_text(worker.command(), "ID")


@contextmanager
def own_environment() -> Iterator[None]:
    """Call sbatch as from a login shell, and without secrets.

    The variables of a job around the launcher would reach into the new ones. Keys would lie in SLURM's own files for as
    long as the jobs live, and workers need none: data are fetched, and W&B is told, by others.
    """
    before = dict(os.environ)
    for name in before:
        if name not in KEPT and (name.startswith("SLURM_") or is_secret(name)):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)
