"""Workers as processes of this machine: at most as many as its cores and GPUs have room for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flbench.launch import WorkersCrash, end_of_log, read_lines, record_user_kill
from flbench.launch.fork_server import ForkServer
from flbench.launch.resources import gpu_slots, oom_kills, usable_cores, visible_gpus
from flbench.messages import counted
from flbench.store import Store
from flbench.store.attempts import ending
from flbench.store.leases import new_token
from flbench.worker import REQUEUE, MemoryShort, Options

#: Environment of a worker: torch sizes its thread pools when it is imported.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

#: Exit codes of workers that have recorded the ends of their runs themselves.
CLEAN_EXITS = (0, REQUEUE, MemoryShort.exit_code)

WORKER = (sys.executable, "-m", "flbench.worker")


@dataclass
class _Worker:
    """A process that was started.

    Attributes:
        gpus: its CUDA_VISIBLE_DEVICES; None if the worker needs no GPU.
        oom_kills: the kernel's count of out-of-memory kills at the worker's start.
        has_ended: whether its end has been handled.
    """

    process: subprocess.Popen[bytes]
    log: Path
    gpus: str | None
    oom_kills: int
    has_ended: bool = False

    @property
    def token(self) -> str:
        return self.log.parent.name


class LocalLauncher:
    """Start workers in sessions of their own, so that the terminal's Ctrl-C reaches only the orchestrator.

    Whenever a worker runs out of memory, ``slots`` decreases by one.
    """

    start_seconds = 0.0  # on cores that would be idle
    delayed = ""

    def __init__(
        self,
        store: Store,
        plan: str,
        options: Options,
        *,
        workers: int | None = None,
        cpus: int = 1,
        gpus: float = 0,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._masks = gpu_slots(gpus, visible_gpus()) if gpus else []
        cpu_slots = max(1, usable_cores() // cpus)
        self.slots = workers or (min(cpu_slots, len(self._masks)) if gpus else cpu_slots)
        self._store, self._plan, self._options, self._command = store, plan, options, command
        self._workers: list[_Worker] = []
        self._forks: ForkServer | None = None

    def start(self, count: int, out_of_memory: int = 0) -> int:
        """Start ``count`` workers; raises StoreUnusable without their logs, and WorkersCrash without a process."""
        for _ in range(count):
            token = new_token()
            taken = [worker.gpus for worker in self._workers if not worker.has_ended]
            gpus = min(self._masks, key=taken.count, default=None)  # those with the fewest workers
            log = self._store.worker_log(token)
            options = replace(
                self._options,
                offset=len(self._workers) % self.slots,
                workers=self.slots,
                neighbours=self._neighbours(gpus),
            )
            argv = [*self._worker_command(), str(self._store.root), self._plan, f"--token={token}", *options.to_argv()]
            visible = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
            try:
                with log.open("ab") as output:
                    process = subprocess.Popen(
                        argv,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, **ONE_THREAD, **visible},
                        start_new_session=True,
                    )
            except OSError as error:
                raise WorkersCrash(f"cannot start a worker: {error}") from None
            self._workers.append(_Worker(process, log, gpus, oom_kills()))
        return count

    def alive(self) -> int:
        """Return how many of the started processes run; record how the others ended."""
        for worker in self._workers:
            if not worker.has_ended and worker.process.poll() is not None:
                worker.has_ended = True
                self._handle_end(worker)
        return sum(not worker.has_ended for worker in self._workers)

    def tokens(self) -> set[str]:
        return {worker.token for worker in self._workers}

    def drain(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                record_user_kill(self._store, worker.token)
        self._signal(signal.SIGKILL)

    def crash_log(self) -> str:
        for worker in reversed(self._workers):
            if worker.process.poll() not in (None, *CLEAN_EXITS):
                return end_of_log(worker.log, f" (exit code {worker.process.returncode})")
        return ""

    def _worker_command(self) -> Sequence[str]:
        """Return the program of a worker: several without a GPU are forks, which share what each would import.

        With a GPU, memory for CUDA and its start dominate; other systems than Linux do not fork such a process safely.
        """
        if self._command != WORKER or self.slots == 1 or self._masks or sys.platform != "linux":
            return self._command
        if self._forks is None:
            try:
                self._forks = ForkServer({**os.environ, **ONE_THREAD})
            except OSError:  # for example, the path of the folder for temporary files is too long for a socket
                return self._command
        return *self._forks.python(), *self._command[1:]

    def _handle_end(self, worker: _Worker) -> None:
        """Give up a slot if memory ran out; record the end of a worker that could not record it itself."""
        code = worker.process.returncode
        killed_by_kernel = code == -signal.SIGKILL and oom_kills() > worker.oom_kills
        if killed_by_kernel or code == MemoryShort.exit_code:
            self.slots = max(1, self.slots - 1)
        if killed_by_kernel:
            alone = self._neighbours(worker.gpus) == 1
            end = ending("oom", "the kernel killed its worker because memory ran out", user_fixable=alone)
        elif code < 0:
            # A real-time signal has no name in Python.
            name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            end = ending("signal", f"its worker was killed by {name}")
        else:
            last = next(reversed(read_lines(worker.log)), "no log")
            end = ending("error", f"its worker ended with exit code {code}: {last:.300}")
        if code not in CLEAN_EXITS:
            self._store.record_death(worker.token, end)

    def _neighbours(self, gpus: str | None) -> int:
        """Return how many workers share the memory of these GPUs, or the machine's if there are none."""
        return self.slots if gpus is None else min(self.slots, self._masks.count(gpus))

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.send_signal(number)


def cancel(store: Store, plan: str) -> str:
    """Send SIGTERM to a plan's workers on this machine.

    Workers in SLURM jobs are left to the mark in the store: to them SIGTERM means that SLURM wants the node back.

    Returns:
        A line for the user, or an empty text.
    """
    signalled = 0
    for worker in store.live_workers():
        if worker.plan == plan and worker.lease.is_local() and worker.lease.slurm_job is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(worker.lease.pid, signal.SIGTERM)
                signalled += 1
    return f"asked {counted(signalled, 'worker')} on this machine to stop" if signalled else ""
