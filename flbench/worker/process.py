"""The worker as a process: its signals, its place in a SLURM job, its exit code.

Exit codes: 0 no run is left for it; 4 the store cannot be used; 75 it was asked to stop (SIGTERM, SIGINT), and its run
is checkpointed and resumable; 76 it ended so that the workers beside it have more memory.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Literal

from flbench.errors import StoreUnusable, UserError
from flbench.slurm import Job
from flbench.store import Lease, StopCheck, Store, open_plan
from flbench.store.secrets import redact
from flbench.worker.claims import work
from flbench.worker.engine import Engine, load_engine
from flbench.worker.options import REQUEUE, Options, parse_command_line


class Stop:
    """Whether this worker shall stop, and why: a signal, or the end of its SLURM job's walltime.

    SLURM sends SIGUSR2 before the walltime's end and before a preemption, and SIGTERM when the user cancels or requeues
    the job. A preemption without warning is SIGTERM as well, and SLURM requeues such a job by itself.
    """

    def __init__(self, job: Job | None) -> None:
        self.job = job
        self._signalled, self._warned = Event(), Event()
        handlers = {signal.SIGTERM: self._signalled, signal.SIGINT: self._signalled}
        if job is not None:
            handlers[signal.SIGUSR2] = self._warned
        for number, event in handlers.items():
            signal.signal(number, lambda *_, event=event: event.set())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)  # a parent may have started this process with them blocked

    def __call__(self) -> bool:
        """Whether to stop at the end of the round."""
        return self._signalled.is_set() or self._why_job_stops() is not None

    @cached_property
    def kind(self) -> Literal["interrupted", "timeout", "preempted"]:
        """Why, as exit.json names it; it stays what it was when first asked."""
        return "interrupted" if self._signalled.is_set() else self._why_job_stops() or "interrupted"

    def _why_job_stops(self) -> Literal["timeout", "preempted"] | None:
        if self.job is None:
            return None
        if self._warned.is_set() and self.job.stop_reason() is None:
            self._warned.clear()
            self.job = self.job.after_warning()
        return self.job.stop_reason()


def main(argv: Sequence[str] | None = None, *, load: Callable[[Options], Engine] = load_engine) -> int:
    """Work on the plan named on the command line; return the exit code."""
    stop = Stop(Job.here())  # before all else: until then, a signal would kill
    given, options = parse_command_line(argv)
    try:
        taken = _work_on(given.store, given.plan, given.token, options, stop, load)
    except UserError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(redact(traceback.format_exc()), file=sys.stderr)
        print(f"error: the store {given.store} cannot be used: {error}", file=sys.stderr)
        return StoreUnusable.exit_code
    if not stop():
        return 0
    # Requeue the job, unless the user wants its end, or its walltime does not suffice to begin any run.
    if stop.job is not None and (stop.kind == "preempted" or (stop.kind == "timeout" and taken)):
        problem = stop.job.requeue()
        result = f"not requeued: {problem}" if problem else f"requeued job {stop.job.job_id}"
        print(f"{stop.kind}: {result}", file=sys.stderr)
    return REQUEUE


def _work_on(
    root: Path, plan: str, token: str | None, options: Options, stop: Stop, load: Callable[[Options], Engine]
) -> int:
    store = Store(root, create=False)
    lease = Lease.here(token)
    cancelled = StopCheck([store.mark(plan).is_set, store.is_deleted])
    with store.heartbeat(lease, plan) as heartbeat:
        if stop.job is not None:
            (heartbeat.directory / "log.txt").symlink_to(stop.job.log)
        entries = open_plan(store.root / "sweeps" / plan / "plan.jsonl")
        try:
            return work(
                store,
                entries,
                lease,
                options,
                should_stop=lambda: stop() or cancelled(),
                stopped_as=lambda: stop.kind if stop() else "interrupted",
                load=load,
            )
        finally:
            store.check_present()  # else a deleted store would be reported as another error, or as a stop
