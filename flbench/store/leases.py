"""Leases: which process executes a run, and whether it is alive.

On the same host, boot and PID namespace, the process id and its start time decide at once. Elsewhere the age of the
worker's heartbeat decides. Ages are relative to the mtime of a file written now to the same file system, never to the
local clock, which other machines do not share. If the file system's clock jumps, or a heartbeat is in its future, the
age is replaced by the time for which this process has seen no new heartbeat. Unknown counts as alive.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from flbench.store import files, strict_json
from flbench.store.names import is_name

#: Seconds between two heartbeats of a worker.
INTERVAL = 10.0

#: Seconds without a heartbeat (or, for a claim, without a lease) after which a worker elsewhere counts as dead.
STALE = 60.0

#: Seconds without a heartbeat after which a worker whose process is there, on this machine, counts as hanging.
HANGING = 180.0


@dataclass(frozen=True)
class Lease:
    """What identifies a process across hosts, reboots, containers and reused process ids."""

    token: str
    host: str
    boot_id: str
    pid: Annotated[int, Field(gt=0, lt=2**31, strict=True)]  # a process that may be sent signals
    pid_start: str
    pid_namespace: str
    slurm_job: str | None
    started: str
    slurm_restart: Annotated[int, Field(ge=0, strict=True)] = 0

    @classmethod
    def here(cls, token: str | None = None) -> Self:
        """Return a lease of this process under a new (or the given) token."""
        return cls(
            token=token or new_token(),
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=os.getpid(),
            pid_start=process_start(os.getpid()) or "",
            pid_namespace=pid_namespace(),
            slurm_job=slurm_job(),
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            slurm_restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the lease in a file; None where the file is absent or damaged."""
        raw = strict_json.read_json(path)
        if raw is None:
            return None
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            lease: Self = _adapter().validate_python({name: raw[name] for name in names if name in raw})
        except ValidationError:
            return None
        return lease if is_name(lease.token) else None  # the token names a folder

    def is_superseded(self) -> bool:
        """Return whether this process is a later start of the same SLURM job, which never runs twice at a time."""
        restart = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        return self.slurm_job is not None and self.slurm_job == slurm_job() and self.slurm_restart < restart

    def to_json(self) -> dict[str, Any]:
        """Return the lease as plain JSON."""
        return dataclasses.asdict(self)

    def is_local(self) -> bool:
        """Return whether its process id is valid here: same host, boot and PID namespace."""
        return bool(self.pid_start) and (self.host, self.boot_id, self.pid_namespace) == (
            socket.gethostname(),
            boot_id(),
            pid_namespace(),
        )


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Lease)


@dataclass(frozen=True)
class LiveWorker:
    """A worker that holds a live lease on a store, and the plan it works on."""

    lease: Lease
    plan: str


class Liveness:
    """Decides which leases of a store are alive."""

    def __init__(self, workers: Path) -> None:
        self.workers = workers
        self._clock = Clock(workers)
        self._watched: dict[Path, tuple[float, float]] = {}

    def alive(self, lease: Lease | None, path: Path) -> bool:
        """Return whether the holder of the lease in ``path`` (read as ``lease``) is alive."""
        if lease is not None and lease.is_local():
            return process_start(lease.pid) == lease.pid_start
        if lease is not None and lease.is_superseded():
            return False
        # A live holder renews its heartbeat; before the first one, it has just made the lease and its folder.
        heartbeat = [] if lease is None else [self.workers / lease.token / "heartbeat"]
        times = ((file, _mtime(file)) for file in (*heartbeat, path, path.parent))
        file, touched = next(((file, touched) for file, touched in times if touched is not None), (None, 0.0))
        now = self._clock.now()
        if file is None or now is None:
            return True
        if self._unchanged_for(file, touched) >= STALE:
            return False
        return not self._clock.is_steady() or now - touched < STALE

    def hangs(self, lease: Lease) -> bool:
        """Return whether a worker's process exists on this machine but its heartbeat has not changed for ``HANGING``.

        The heartbeat's age alone is not enough: the file system may date it by another clock than the file that it is
        compared with. A worker in a SLURM job never counts as hanging: SLURM may have suspended it.
        """
        if not lease.is_local() or lease.slurm_job is not None or lease.pid == os.getpid():
            return False
        if process_start(lease.pid) != lease.pid_start:
            return False
        heartbeat = self.workers / lease.token / "heartbeat"
        touched = _mtime(heartbeat)
        return touched is not None and self._unchanged_for(heartbeat, touched) >= HANGING

    def recorded_end(self, lease: Lease | None) -> dict[str, Any] | None:
        """Return how the holder of a lease ended, as the launcher recorded it; None where it recorded nothing."""
        return None if lease is None else read_end(self.workers / lease.token / "exit.json")

    def age(self, path: Path) -> float | None:
        """Return the seconds since a file was modified, by the file system's own time; None where it does not exist."""
        touched, now = _mtime(path), self._clock.now()
        return None if touched is None or now is None else max(0.0, now - touched)

    def heartbeat_age(self, lease: Lease) -> float | None:
        """Return the seconds since a worker's last heartbeat; None where it has none."""
        return self.age(self.workers / lease.token / "heartbeat")

    def _unchanged_for(self, path: Path, touched: float) -> float:
        """Return the seconds since this object first saw a file's present time of modification."""
        elapsed = time.monotonic()
        if self._watched.get(path, (None,))[0] != touched:
            self._watched[path] = touched, elapsed
        return elapsed - self._watched[path][1]


class Clock:
    """The time of a file system, and whether it can be relied on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: tuple[float, float] | None = None
        self._jumped: float | None = None

    def now(self) -> float | None:
        """Return the file system's own time (asked at most once a second); None where that fails."""
        elapsed = time.monotonic()
        if self._read is None or elapsed - self._read[1] > 1:
            try:
                probe = files.stage(self._directory / "now", lambda file: None, sync=False)
                found = probe.stat().st_mtime
                files.discard(probe)
            except OSError:
                return None
            if self._read is not None and abs(found - self._read[0] - (elapsed - self._read[1])) > INTERVAL:
                self._jumped = elapsed
            self._read = found, elapsed
        return self._read[0] + elapsed - self._read[1]

    def is_steady(self) -> bool:
        """Return whether no jump was seen for ``STALE`` seconds, in which every live worker renews its heartbeat."""
        return self._jumped is None or time.monotonic() - self._jumped >= STALE


class Heartbeat:
    """Registers a worker in the store and renews its heartbeat from a thread, whatever the worker is doing.

    Written, not touched: network file systems date writes by the server's clock and utime by the client's, and we
    compare the server's dates.
    """

    def __init__(self, workers: Path, lease: Lease, plan: str = "") -> None:
        self.directory = workers / lease.token
        self._lease, self._plan = lease, plan
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="flbench-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        files.make_directory(self.directory, self.directory.parent)
        files.replace(self.directory / "heartbeat", b"\n", sync=False)
        content = strict_json.pretty({**self._lease.to_json(), "plan": self._plan})
        files.replace(self.directory / "lease.json", content, sync=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for name in ("lease.json", "heartbeat"):
            files.discard(self.directory / name)
        with suppress(OSError):  # a directory that stays does no harm
            log = self.directory / "log.txt"
            # After an error, the worker has not written its message yet.
            if error is None and log.exists() and not log.stat().st_size:
                files.discard(log)
            if not any(self.directory.iterdir()):
                self.directory.rmdir()

    def _beat(self) -> None:
        while not self._ended.wait(INTERVAL):
            with suppress(OSError):  # a file system that is unavailable for a while must not end the worker
                files.overwrite(self.directory / "heartbeat", b"\n")


def read_end(path: Path) -> dict[str, Any] | None:
    """Return how an attempt or a worker ended; None where its file is absent or damaged.

    Raises:
        StoreUnusable: a newer flbench wrote it.
        OSError: it cannot be read.
    """
    end = strict_json.read_json(path)
    if end is None or not all(isinstance(end.get(name, ""), str) for name in ("kind", "message", "time")):
        return None
    return end if isinstance(end.get("round"), int | None) else None


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of the SLURM job around this process, of an array's task as ARRAY_TASK; None outside SLURM.

    SLURM_JOB_ID of the array's last task is the id of the array: SLURM's commands would act on all of its tasks.
    """
    try:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    except KeyError:
        return environment.get("SLURM_JOB_ID")


def new_token() -> str:
    """Return a unique name for a worker."""
    return uuid.uuid4().hex[:12]


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot; empty where the system has none."""
    return _read("/proc/sys/kernel/random/boot_id")


@cache
def pid_namespace() -> str:
    """Return this process's PID namespace; empty where the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_start(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None where it does not run (a zombie does not)."""
    # The name in parentheses may hold spaces and parentheses itself; the numbers come after the last one.
    values = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return values[19] if len(values) > 19 and values[0] not in "ZX" else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
