"""Disks with faults. Tests put them in place of ``files.disk``, through which all changes of a store go."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flbench.store import files
from flbench.store.files import Disk

fork = multiprocessing.get_context("fork")


class Counting(Disk):
    """Counts the calls that change something, and calls ``reach`` before each."""

    def __init__(self) -> None:
        self.calls = 0

    def reach(self, call: str, number: int) -> bool:
        """Return whether to make the call. It may also raise, or end the process."""
        return True

    def _reach(self, call: str) -> bool:
        self.calls += 1
        return self.reach(call, self.calls)

    def create(self, path: Path) -> int:
        self._reach("create")
        return super().create(path)

    def open(self, path: Path, *, append: bool = False) -> int:
        self._reach("open")
        return super().open(path, append=append)

    def write(self, descriptor: int, data: Any) -> int:
        return super().write(descriptor, data) if self._reach("write") else self.half(descriptor, data)

    def half(self, descriptor: int, data: Any) -> int:
        """Write only half of the data, but report all of it as written."""
        os.write(descriptor, bytes(data)[: len(data) // 2])
        return len(data)

    def sync(self, descriptor: int) -> None:
        if self._reach("sync"):
            super().sync(descriptor)

    def mkdir(self, path: Path) -> None:
        if self._reach("mkdir"):
            super().mkdir(path)

    def rename(self, path: Path, target: Path) -> None:
        if self._reach("rename"):
            super().rename(path, target)

    def link(self, path: Path, target: Path) -> None:
        if self._reach("link"):
            super().link(path, target)

    def remove(self, path: Path) -> None:
        if self._reach("remove"):
            super().remove(path)


class Killing(Counting):
    """Kills the process before one call or, with ``torn``, in the middle of it if it is a write."""

    def __init__(self, number: int, *, torn: bool = False) -> None:
        super().__init__()
        self.number, self.torn = number, torn

    def reach(self, call: str, number: int) -> bool:
        if number == self.number:
            if self.torn and call == "write":
                return False
            die()
        return True

    def half(self, descriptor: int, data: Any) -> int:
        super().half(descriptor, data)
        return die()


class Failing(Counting):
    """Makes one call fail with an error of the disk; with ``forever``, every later call, too."""

    def __init__(self, number: int, code: int = errno.EIO, *, forever: bool = False) -> None:
        super().__init__()
        self.number, self.code, self.forever = number, code, forever

    def reach(self, call: str, number: int) -> bool:
        if number == self.number or (self.forever and number > self.number):
            raise OSError(self.code, os.strerror(self.code))
        return True


class ReadOnly(Counting):
    """Refuses every change, even by root. The error names the file where the system's error would."""

    def __init__(self, code: int = errno.EROFS) -> None:
        super().__init__()
        self.code = code

    def create(self, path: Path) -> int:
        raise OSError(self.code, os.strerror(self.code), os.fspath(path))

    def open(self, path: Path, *, append: bool = False) -> int:
        return self.create(path)

    def mkdir(self, path: Path) -> None:
        super().mkdir(path) if path.exists() else self.create(path)

    def reach(self, call: str, number: int) -> bool:
        if call == "mkdir":
            return True
        raise OSError(self.code, os.strerror(self.code))


class Full(Counting):
    """Has no space from one call on: space that was allocated before can be overwritten and renamed, nothing else."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.allotted: set[int] = set()

    def reach(self, call: str, number: int) -> bool:
        if number >= self.number and call in ("create", "write", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True

    def open(self, path: Path, *, append: bool = False) -> int:
        descriptor = super().open(path, append=append)
        self.allotted = self.allotted - {descriptor} if append else self.allotted | {descriptor}
        return descriptor

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.allotted -= {descriptor}
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        return os.write(descriptor, data) if descriptor in self.allotted else super().write(descriptor, data)


class Losing(Counting):
    """Reports one change as made without making it, as a file server that loses it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def reach(self, call: str, number: int) -> bool:
        return number != self.number or call == "write"


class ShiftedClock(Disk):
    """A file system whose clock is ``shift()`` seconds ahead of this machine's."""

    def __init__(self, shift: Callable[[], float]) -> None:
        self.shift = shift

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._date(descriptor)
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        written = super().write(descriptor, data)
        self._date(descriptor)
        return written

    def touch(self, path: Path) -> None:
        super().touch(path)
        self._date(path)

    def _date(self, file: int | Path) -> None:
        now = time.time() + self.shift()
        os.utime(file, (now, now))


class TwoClocks(ShiftedClock):
    """A file system that uses its own clock for creating and writing, and this machine's clock for touching."""

    def touch(self, path: Path) -> None:
        Disk.touch(self, path)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL did not end the process")


def in_child(act: Callable[[], Any], disk: Disk | None = None) -> int | None:
    """Return the exit code of a child process that runs ``act`` on a disk; negative: the signal that killed it."""

    def run() -> None:
        if disk is not None:
            files.disk = disk
        raise SystemExit(act())

    process = fork.Process(target=run)
    process.start()
    process.join(60)
    assert not process.is_alive(), "hangs"
    return process.exitcode
