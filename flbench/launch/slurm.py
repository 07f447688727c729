"""Workers as array jobs of a SLURM cluster, submitted with submitit."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flbench.choices import Memory
from flbench.errors import UserError
from flbench.launch import WorkersCrash, end_of_log, record_user_kill
from flbench.launch.local import WORKER
from flbench.launch.sbatch import Array, Refused, Request
from flbench.launch.submissions import Submission
from flbench.slurm import Row, config_value, scancel, shows_lack_of_memory, squeue
from flbench.store import Store
from flbench.worker import Options

#: Least seconds between two questions to the controller.
POLL_SECONDS = 2.0

#: Least seconds of work for which a job is submitted: a job takes about as long to start and to import torch.
START_SECONDS = 10.0

#: The pause after an answer of the controller, as a multiple of the time that the answer took.
POLL_PAUSE_FACTOR = 10.0

#: Seconds until the next submission after SLURM refused one for a temporary reason.
RETRY_SECONDS = 30.0

#: How many times the usual memory the jobs get for runs that ran out of memory.
MEMORY_FACTOR = 2

#: Most tasks of an array, if SLURM does not report its limit.
ARRAY_SIZE = 1000

#: Shell command that ignores SIGUSR2 and then becomes the worker: SLURM's warning would kill Python while it starts.
#: The worker does not need that warning: it knows the end of its wall time, and a preemption sends SIGTERM afterwards.
IGNORE_USR2 = 'trap "" USR2; exec "$0" "$@"'

#: Parts of sbatch's messages after which SLURM may have accepted the jobs or not.
UNCERTAIN = ("timed out", "Unable to contact", "temporarily", "Connection refused")

#: Parts of sbatch's messages after which the same call may succeed later: a partition is drained or inactive, or nodes.
LATER = ("Required partition not available", "Required node not available")

#: Part of sbatch's message if a limit on jobs is reached: if some of them are this plan's, they will end and make room.
FULL = "SubmitJob"


class SlurmLauncher:
    """Submit workers as array jobs; count all jobs of the plan, including those that other launchers submitted."""

    start_seconds = START_SECONDS

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
        self._polled_at, self._poll_pause = -math.inf, 0.0
        self._refused_until, self._refusal = -math.inf, ""
        self._seen: set[str] = set()  # names of submissions that have had a live job
        self._ended_before: dict[str, set[str]] = {}  # by submission, the tasks that had ended at its first poll
        self._failed_nodes: set[str] = set()
        self._cancelled = False

    @property
    def slots(self) -> int:
        """Return the requested number of workers; 0 after a ``scancel``."""
        return 0 if self._cancelled else self._workers

    @property
    def delayed(self) -> str:
        """Return why SLURM took no job a moment ago; '' if it did, or if it is time to ask again."""
        return self._refusal if time.monotonic() < self._refused_until else ""

    def start(self, count: int, out_of_memory: int = 0) -> int:
        """Submit ``count`` workers in arrays as large as SLURM allows; ``out_of_memory`` of them get more memory.

        Returns:
            How many SLURM has accepted; if they are fewer, ``delayed`` says why.

        Raises:
            UserError: SLURM refuses the jobs.
            WorkersCrash: the user cancelled a job of the plan, and no other is left.
        """
        if self._cancelled:
            raise WorkersCrash("jobs of this sweep were cancelled with scancel; run the same command again to continue")
        largest = max(1, int(config_value("MaxArraySize") or ARRAY_SIZE))
        more = out_of_memory if self._request.mem is not None else 0
        sharing = min(self._workers, self.alive() + count)
        accepted = 0
        for wanted, more_memory in ((more, True), (count - more, False)):
            for begin in range(0, wanted, largest):
                if not self.delayed:  # SLURM has accepted all arrays so far
                    accepted += self._submit(begin, min(largest, wanted - begin), more_memory, sharing)
        return accepted

    def alive(self) -> int:
        """Return how many jobs of the plan are queued or running; as before while SLURM does not answer."""
        self._poll()
        count = 0
        for submission in Submission.of_plan(self._store, self._plan):
            rows = self._rows.get(submission.name)
            # All jobs of a submission count while SLURM lists none of them.
            count += submission.tasks if not rows else sum(row.alive for row in rows)
        return count

    def tokens(self) -> set[str]:
        """Return the names of all workers in SLURM jobs: ``alive`` counts them as jobs."""
        return {worker.lease.token for worker in self._store.live_workers() if worker.lease.slurm_job is not None}

    def drain(self) -> None:
        """Cancel the queued jobs, and ask the running workers to stop at the end of their round."""
        if names := name_option(self._store, self._plan):
            scancel("--state=PENDING", names)
            scancel("--state=RUNNING", "--signal=TERM", names)
        self._polled_at = -math.inf

    def kill(self) -> None:
        """Cancel every job; record first that the user asked for it, since SLURM soon forgets why a job ended."""
        for worker in self._store.live_workers():
            if worker.plan == self._plan and worker.lease.slurm_job is not None:
                record_user_kill(self._store, worker.lease.token)
        if names := name_option(self._store, self._plan):
            scancel(names)
        self._polled_at = -math.inf

    def crash_log(self) -> str:
        """Return the end of the newest log of the plan's jobs, and what it means; '' if there is none."""
        ours = (found for found in Submission.all(self._store, ended=True) if found.plan == self._plan)
        logs = [log for submission in ours for log in submission.logs()]
        if not logs:
            return ""
        newest = max(logs, key=lambda log: log.stat().st_mtime)
        states = {row.state for rows in self._rows.values() for row in rows}
        if "OUT_OF_MEMORY" not in states and not shows_lack_of_memory(newest):
            return end_of_log(newest)
        mem = "its cluster's default" if self._request.mem is None else f"{self._request.mem / 2**20:.0f} MiB"
        return (
            f"a job does not have the memory that a worker needs to start (mem is {mem}, and importing torch takes "
            f"about 0.7 GB): raise mem in the profile; {end_of_log(newest)}"
        )

    def _submit(self, begin: int, tasks: int, more_memory: bool, sharing: int) -> int:
        """Submit one array; return how many of its tasks SLURM has accepted."""
        excluded = ",".join(filter(None, [self._request.exclude, *sorted(self._failed_nodes)]))
        request = replace(self._request, exclude=excluded or None)
        if more_memory and request.mem is not None:
            request = replace(request, mem=MEMORY_FACTOR * request.mem)
        options = replace(self._options, memory=memory_of(request, more_memory), workers=sharing)
        submission = Submission.create(self._store, self._plan, tasks, memory=options.memory)
        command = worker_command(self._store.root, self._plan, options, begin, self._command)
        array = Array(submission.folder.absolute(), submission.name, tasks, request, command)
        try:
            job = array.submit()
        except Refused as error:
            self._handle_refusal(submission, str(error))
            return 0
        except UserError:
            submission.record_end()
            raise
        submission.record_job_id(job)
        self._seen.add(submission.name)
        self._ended_before[submission.name] = set()
        self._polled_at = -math.inf
        return tasks

    def _handle_refusal(self, submission: Submission, why: str) -> None:
        """Wait before the next submission if SLURM may accept it then; otherwise raise UserError."""
        lines = [line for line in why.splitlines() if "sbatch" in line and "rror" in line] or why.splitlines()[-1:]
        uncertain = any(reason in why for reason in UNCERTAIN)
        if uncertain:
            submission.release()
        else:
            submission.record_end()
        if not uncertain and not any(reason in why for reason in LATER) and not (FULL in why and self._seen):
            raise UserError(f"SLURM refuses the job: {' '.join(lines)}; its script is in {submission.folder}")
        self._refused_until = time.monotonic() + RETRY_SECONDS
        self._refusal = f"SLURM takes no jobs now ({' '.join(lines)})"

    def _poll(self) -> None:
        """Ask SLURM for the states of the plan's jobs, unless the last answer is recent."""
        began = time.monotonic()
        if began < self._polled_at + self._poll_pause:
            return
        submissions = Submission.of_plan(self._store, self._plan)
        rows = squeue(submission.name for submission in submissions) if submissions else []
        self._polled_at = time.monotonic()
        self._poll_pause = max(POLL_SECONDS, POLL_PAUSE_FACTOR * (self._polled_at - began))
        if rows is None:
            return
        self._rows = {submission.name: [] for submission in submissions}
        for row in rows:
            self._rows.setdefault(row.name, []).append(row)
        self._failed_nodes |= {row.nodes for row in rows if row.state == "NODE_FAIL" and row.nodes}
        for submission in submissions:
            own = self._rows[submission.name]
            if own and submission.job_id is None:  # its launcher died before it could record the id
                submission.record_job_id(own[0].job)
            # If the user cancelled even one task, submit no more: a new job would undo that.
            before = self._ended_before.setdefault(submission.name, {row.task for row in own if not row.alive})
            self._cancelled |= any(row.state == "CANCELLED" and row.task not in before for row in own)
            if any(row.alive for row in own):
                self._seen.add(submission.name)
            elif not submission.is_in_progress(self._store):
                submission.record_end()


def name_option(store: Store, plan: str) -> str:
    """Return the ``--name`` option that selects the jobs of a plan; '' if it has none."""
    names = ",".join(submission.name for submission in Submission.of_plan(store, plan))
    return f"--name={names}" if names else ""


def worker_command(store: Path, plan: str, options: Options, begin: int = 0, program: Sequence[str] = WORKER) -> str:
    """Return the shell command of an array's tasks; task i starts at the run ``begin + i`` of the plan."""
    arguments = [option for option in options.to_argv() if not option.startswith("--offset=")]
    command = ["sh", "-c", IGNORE_USR2, *program, str(store.absolute()), plan, *arguments]
    return f'{shlex.join(command)} "--offset=$(({begin} + SLURM_ARRAY_TASK_ID))"'


def memory_of(request: Request, more: bool) -> Memory:
    """Return the ``memory`` option of a job's worker."""
    if request.mem is None:
        return "all"
    return "more" if more else "usual"


def cancel(store: Store, plan: str) -> str:
    """Cancel a plan's queued jobs; return a line for the user, or ''. Running workers see the mark in the store."""
    names = name_option(store, plan)
    if not names:
        return ""
    if scancel("--state=PENDING", names):
        return "cancelled the jobs that were queued in SLURM"
    return "scancel does not answer: queued SLURM jobs will end as soon as they start"


def script(store: Path, plan: str, options: Options, request: Request, tasks: int) -> str:
    """Return the script that sbatch would get, to show it to the user."""
    options = replace(options, memory=memory_of(request, more=False), workers=tasks)
    folder = (store / "submissions" / "ID").absolute()
    return Array(folder, "flb-ID", tasks, request, worker_command(store, plan, options)).script()
