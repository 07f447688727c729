"""Open regular files only: anything else in the place of a file is refused, without waiting for it."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

#: Kinds of non-regular file, by the type in their mode.
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link that leads nowhere",
}


class NotRegular(OSError):
    """A directory, a FIFO, a socket, a device or a loop of links where a file is expected."""

    def __init__(self, path: str, mode: int) -> None:
        self.kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"expected a file, got {self.kind}", path)


def open_regular(path: Path | str) -> BufferedReader:
    """Return a file that is open for reading.

    A plain ``open`` of a FIFO without a writer blocks for ever; not even SIGTERM ends a worker then.

    Raises:
        NotRegular: the path exists and is no regular file.
        OSError: the path does not exist, or cannot be read.
    """
    return open(path, "rb", opener=_open)


def read_regular(path: Path | str) -> bytes:
    """Return the bytes of a file; raises as ``open_regular``."""
    descriptor = _open(os.fspath(path), os.O_RDONLY | os.O_CLOEXEC)  # half the time of a file object
    try:
        left = os.fstat(descriptor).st_size
        parts = []
        while part := os.read(descriptor, max(left + 1, 1 << 12)):
            parts.append(part)
            if len(part) == left:  # more was requested, so this is the end
                break
            left -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read_text(path: Path | str) -> str:
    """Return the text of a UTF-8 file, whatever the locale; raises as ``open_regular``, and UnicodeDecodeError."""
    return read_regular(path).decode("utf-8-sig")


def open_descriptor(path: Path | str, flags: int) -> int:
    """Return a descriptor, as ``os.open``; once more where NFS has kept the handle of a file that was replaced."""
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return os.open(path, flags, 0o666)


def _open(path: str, flags: int) -> int:
    try:
        descriptor = open_descriptor(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket, a loop of links
            raise NotRegular(path, os.lstat(path).st_mode) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegular(path, mode)
    return descriptor
