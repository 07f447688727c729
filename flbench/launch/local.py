"""Worker processes on this machine: as many as its cores and GPUs have slots for."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from flbench.errors import UserError
from flbench.launch import KILLED, WorkersCrash
from flbench.launch.memory import oom_kills
from flbench.store import Store
from flbench.store.attempts import ending
from flbench.store.leases import new_token
from flbench.worker import REQUEUE, MemoryShort, Options

#: Set before torch is imported: it sizes its thread pools then.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

#: Exit codes of workers that have put everything in order before they went.
ORDERLY = (0, REQUEUE, MemoryShort.exit_code)

WORKER = (sys.executable, "-m", "flbench.worker")


@dataclass
class _Worker:
    """A process that was started: its log, its GPUs, and how often the kernel had run out of memory before."""

    process: subprocess.Popen[bytes]
    log: Path
    mask: str | None
    oom_kills: int
    is_over: bool = False

    @property
    def token(self) -> str:
        return self.log.parent.name


class LocalLauncher:
    """Starts workers as processes of their own session, so that the terminal's Ctrl-C reaches only the orchestrator.

    Where memory runs short, there is room for one worker fewer from then on.
    """

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

    def start(self, count: int, starved: int = 0) -> None:
        """Start that many workers.

        Raises:
            StoreUnusable: their logs cannot be made.
            WorkersCrash: the machine lets no process begin.
        """
        for _ in range(count):
            token, mask = new_token(), self._free_mask()
            log = self._store.worker_log(token)
            options = replace(
                self._options,
                offset=len(self._workers) % self.slots,
                workers=self.slots,
                neighbours=self._neighbours(mask),
            )
            argv = [*self._command, str(self._store.root), self._plan, f"--token={token}", *options.to_argv()]
            visible = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
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
                raise WorkersCrash(f"no worker can be started: {error}") from None
            self._workers.append(_Worker(process, log, mask, oom_kills()))

    def alive(self) -> int:
        """How many of the started processes run; those that have ended meanwhile get their last words written."""
        for worker in self._workers:
            if not worker.is_over and worker.process.poll() is not None:
                worker.is_over = True
                self._conclude(worker)
        return sum(not worker.is_over for worker in self._workers)

    def tokens(self) -> set[str]:
        """The names of all workers it has started."""
        return {worker.token for worker in self._workers}

    def drain(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, after recording that the user asked for it."""
        for worker in self._workers:
            if worker.process.poll() is None:
                self._store.record_death(worker.token, ending("interrupted", KILLED))
        self._signal(signal.SIGKILL)

    def crash_log(self) -> str:
        """The end of the log of the worker that crashed last."""
        for worker in reversed(self._workers):
            if worker.process.poll() not in (None, *ORDERLY):
                lines = _lines(worker.log)[-15:]
                return "\n".join([f"{worker.log} (exit code {worker.process.returncode}) ends with:", *lines])
        return ""

    def _conclude(self, worker: _Worker) -> None:
        """Draw the consequences of a worker's end, and tell them to whoever asks what became of its run."""
        code = worker.process.returncode
        killed = code == -signal.SIGKILL and oom_kills() > worker.oom_kills
        if killed or code == MemoryShort.exit_code:
            self.slots = max(1, self.slots - 1)
        if killed:
            end = ending(
                "oom", "its worker was killed for want of memory", user_fixable=self._neighbours(worker.mask) == 1
            )
        elif code < 0:
            end = ending("signal", f"its worker was killed by {signal_name(-code)}")
        else:
            last = next(reversed(_lines(worker.log)), "it left no log")
            end = ending("error", f"its worker ended with exit code {code}: {last:.300}")
        if code not in ORDERLY:
            self._store.record_death(worker.token, end)

    def _free_mask(self) -> str | None:
        """The GPUs with the fewest workers on them; None where GPUs are not asked for."""
        taken = [worker.mask for worker in self._workers if not worker.is_over]
        return min(self._masks, key=taken.count, default=None)

    def _neighbours(self, mask: str | None) -> int:
        """How many workers share the memory that counts: that of the GPU, or else the machine's."""
        return self.slots if mask is None else min(self.slots, self._masks.count(mask))

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.send_signal(number)


def cancel(store: Store, plan: str) -> str:
    """Send SIGTERM to the workers of a plan that are processes of this machine; say how many there were.

    Those inside SLURM jobs are left to the mark in the store: to them SIGTERM means that SLURM wants the node back.
    """
    signalled = 0
    for worker in store.live_workers():
        if worker.plan == plan and worker.lease.is_local() and worker.lease.slurm_job is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(worker.lease.pid, signal.SIGTERM)
                signalled += 1
    return f"asked {signalled} workers on this machine to stop" if signalled else ""


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask and its cgroup's quota both count."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    root = Path("/sys/fs/cgroup")
    own = (root / line.partition("::/")[2] for line in _lines(Path("/proc/self/cgroup")) if line.startswith("0::/"))
    return max(1, int(min(cores, *map(cgroup_quota, (root, *own)))))


def signal_name(number: int) -> str:
    """A signal as people know it: SIGKILL; a real-time signal has no name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def cgroup_quota(root: Path) -> float:
    """CPUs that a cgroup may use (v2 or v1); infinite where there is no limit."""
    for quota_file, period_file in (("cpu.max", "cpu.max"), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota = (root / quota_file).read_text().split()[0]
            period = (root / period_file).read_text().split()[-1]
        except (OSError, IndexError):
            continue
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return math.inf


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them: indices, UUIDs or MIG instances."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        names = (name.strip() for name in mask.split(","))
        return [name for name in names if name and name not in ("-1", "NoDevFiles")]
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listing.splitlines()))]


def gpu_slots(gpus: float, devices: Sequence[str]) -> list[str]:
    """One mask per worker that fits on the devices: shared ones are filled in turn, several per worker are consecutive.

    Raises:
        UserError: not even one worker fits.
    """
    if gpus < 1:
        slots = list(chain.from_iterable([devices] * int(1 / gpus)))
    else:
        size = math.ceil(gpus)
        slots = [",".join(devices[i : i + size]) for i in range(0, len(devices) - size + 1, size)]
    if not slots:
        seen = ", ".join(devices) or "none (nvidia-smi and CUDA_VISIBLE_DEVICES show no GPU)"
        raise UserError(
            f"resources.gpus asks for {gpus:g} GPUs a run; visible here: {seen}. `--set resources.gpus=0` uses the CPU"
        )
    return slots
