"""Disks with a fault: each takes the place of ``files.disk``, the one seam through which a store is changed."""

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
    """Counts the calls that change something; ``reach`` is told of each before it is made."""

    def __init__(self) -> None:
        self.calls = 0

    def reach(self, call: str, number: int) -> bool:
        """Whether the call is to be made; it may also raise, or end the process."""
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
        """A write that comes only half as far as it says."""
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


class Deadly(Counting):
    """The process is killed at one call: before it, or (``torn``) in the middle of it, if it is a write."""

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
    """One call fails with an error of the disk; with ``forever`` every later one does too."""

    def __init__(self, number: int, code: int = errno.EIO, *, forever: bool = False) -> None:
        super().__init__()
        self.number, self.code, self.forever = number, code, forever

    def reach(self, call: str, number: int) -> bool:
        if number == self.number or (self.forever and number > self.number):
            raise OSError(self.code, os.strerror(self.code))
        return True


class ReadOnly(Counting):
    """Nothing can be changed, not even by root; the error names the file where the system would."""

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
    """From one call on there is no room: what was allotted before can be written over and renamed, and that is all."""

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


class Forgetful(Counting):
    """One change is reported as made and never was: a server lost it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def reach(self, call: str, number: int) -> bool:
        return number != self.number or call == "write"


class Elsewhen(Disk):
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


class TwoClocks(Elsewhen):
    """A file system that dates what is created or written by its own clock, and what is touched by this machine's."""

    def touch(self, path: Path) -> None:
        Disk.touch(self, path)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed and still here")


def in_child(act: Callable[[], Any], disk: Disk | None = None) -> int | None:
    """The exit code of a process that does something on a disk; negative: the signal that killed it."""

    def run() -> None:
        if disk is not None:
            files.disk = disk
        raise SystemExit(act())

    process = fork.Process(target=run)
    process.start()
    process.join(60)
    assert not process.is_alive(), "hangs"
    return process.exitcode
