"""Worker processes on this machine: as many as its cores and GPUs have slots for."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from flbench.errors import UserError
from flbench.store import Store
from flbench.store.leases import new_token
from flbench.worker import REQUEUE, Options

#: Set before torch is imported: it sizes its thread pools then.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

WORKER = (sys.executable, "-m", "flbench.worker")


class LocalLauncher:
    """Starts workers as processes of their own session, so that the terminal's Ctrl-C reaches only the orchestrator."""

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
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, count: int) -> None:
        """Start that many workers."""
        for _ in range(count):
            number = len(self._processes)
            token = new_token()
            log = self._store.workers / token / "log.txt"
            log.parent.mkdir(parents=True, exist_ok=True)
            options = replace(self._options, offset=number % self.slots, workers=self.slots)
            argv = [*self._command, str(self._store.root), self._plan, f"--token={token}", *options.to_argv()]
            mask = {"CUDA_VISIBLE_DEVICES": self._masks[number % len(self._masks)]} if self._masks else {}
            with log.open("ab") as output:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **ONE_THREAD, **mask},
                    start_new_session=True,
                )
            self._processes.append((process, log))

    def alive(self) -> int:
        """How many of the started processes run."""
        return sum(process.poll() is None for process, _ in self._processes)

    def tokens(self) -> set[str]:
        """The names of all workers it has started."""
        return {log.parent.name for _, log in self._processes}

    def drain(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def last_words(self) -> str:
        """The end of the log of the worker that crashed last."""
        for process, log in reversed(self._processes):
            if process.poll() not in (None, 0, REQUEUE):
                lines = log.read_text(errors="replace").splitlines()[-15:]
                return "\n".join([f"{log} (exit code {process.returncode}) ends with:", *lines])
        return ""

    def _signal(self, number: signal.Signals) -> None:
        for process, _ in self._processes:
            if process.poll() is None:
                process.send_signal(number)


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


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
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
