"""The worker as a process: its signals, its SLURM job, its exit code.

Exit codes: 0 no run is left for it; 4 the store cannot be used; 75 it was asked to stop (SIGTERM, SIGINT, or the end of
its SLURM job), and its run has a checkpoint; 76 it ended to free memory for the other workers on this machine.
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
from flbench.store import CancelMark, Heartbeat, Lease, StopCheck, Store, read_plan, read_search
from flbench.store.secrets import redact
from flbench.worker.claims import work
from flbench.worker.engine import Engine, load_engine
from flbench.worker.options import REQUEUE, Options, parse_command_line


class StopRequest:
    """Whether this worker must stop, and why: a signal, or the end of its SLURM job's wall time.

    SLURM sends SIGUSR2 before the end of the wall time and before a preemption, and SIGTERM when the user cancels or
    requeues the job. A preemption without warning is SIGTERM as well, and SLURM requeues such a job by itself.
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
        """Return whether to stop at the end of the current round."""
        return self._signalled.is_set() or self._job_stop_reason() is not None

    @cached_property
    def kind(self) -> Literal["interrupted", "timeout", "preempted"]:
        """Why, as the kind of an exit.json; fixed at the first access."""
        return "interrupted" if self._signalled.is_set() else self._job_stop_reason() or "interrupted"

    def _job_stop_reason(self) -> Literal["timeout", "preempted"] | None:
        if self.job is None:
            return None
        if self._warned.is_set() and self.job.stop_reason() is None:
            self._warned.clear()
            self.job = self.job.after_warning()
        return self.job.stop_reason()


def main(argv: Sequence[str] | None = None, *, load: Callable[[Options], Engine] = load_engine) -> int:
    """Execute runs of the plan named on the command line; return the exit code."""
    stop = StopRequest(Job.here())  # first of all: until the handlers are installed, a signal kills this process
    given, options = parse_command_line(argv)
    try:
        claimed = _execute_plan(given.store, given.plan, given.token, options, stop, load)
    except UserError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(redact(traceback.format_exc()), file=sys.stderr)
        print(f"error: the store {given.store} cannot be used: {error}", file=sys.stderr)
        return StoreUnusable.exit_code
    if not stop():
        return 0
    # Requeue the job, unless the user cancelled it or its wall time is too short to start a run.
    if stop.job is not None and (stop.kind == "preempted" or (stop.kind == "timeout" and claimed)):
        problem = stop.job.requeue()
        result = f"not requeued: {problem}" if problem else f"requeued job {stop.job.job_id}"
        print(f"{stop.kind}: {result}", file=sys.stderr)
    return REQUEUE


def _execute_plan(
    root: Path, plan: str, token: str | None, options: Options, stop: StopRequest, load: Callable[[Options], Engine]
) -> int:
    """Execute runs of a plan under a lease with a heartbeat; return how many were claimed."""
    store = Store(root, create=False)
    lease = Lease.here(token)
    cancelled = StopCheck([CancelMark(store.sweeps / plan).is_set, store.is_deleted])
    with Heartbeat(store.workers, lease, plan) as heartbeat:
        if stop.job is not None:
            (heartbeat.directory / "log.txt").symlink_to(stop.job.log)
        entries = read_plan(store.sweeps / plan / "plan.jsonl")
        try:
            return work(
                store,
                entries,
                lease,
                options,
                should_stop=lambda: stop() or cancelled(),
                stopped_as=lambda: stop.kind if stop() else "interrupted",
                load=load,
                search=read_search(store.sweeps / plan),
            )
        finally:
            store.check_present()  # otherwise a deleted store would be reported as another error or as a stop
