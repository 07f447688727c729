"""Files that are whole or absent: unique temporary name, fsync, then rename (replace) or link (first writer wins).

Temporary files start with a dot, so that no reader mistakes one for a final file. They follow the user's umask, so that
a group can read what one of its members wrote.

Every change of a store is one of the system calls in ``Disk``, made through this module's ``disk``. Tests of crashes
and full disks replace it by another ``Disk``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from io import BufferedWriter, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from flbench.regular import NotRegular, open_descriptor, open_regular, read_regular

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: Most bytes in one write, so that what is on disk after an error does not depend on the size of a buffer.
CHUNK = 1 << 20

#: How file systems without hard links refuse one.
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class Disk:
    """The system calls that change a store; a fault is injected by overriding one of them."""

    def create(self, path: Path) -> int:
        """Create a file and open it for writing; raises FileExistsError if it exists."""
        return open_descriptor(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC)

    def open(self, path: Path, *, append: bool = False) -> int:
        """Open a file for writing; with ``append``, create it if it is absent."""
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY if append else os.O_RDWR
        return open_descriptor(path, flags | os.O_CLOEXEC)

    def write(self, descriptor: int, data: Buffer) -> int:
        """Write at least some of the bytes; return how many."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Wait until a file or a directory is on disk."""
        os.fsync(descriptor)

    def touch(self, path: Path) -> None:
        """Create a file if it is absent, and set its times to the file system's present time."""
        with _closing(self.open(path, append=True)) as descriptor:
            os.utime(descriptor)

    def mkdir(self, path: Path) -> None:
        """Create a directory; raises FileExistsError if the path exists."""
        path.mkdir()

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file (an existing target is replaced), or a directory to a free name."""
        path.rename(target)

    def link(self, path: Path, target: Path) -> None:
        """Give a file a second name; raises FileExistsError if that exists."""
        os.link(path, target)

    def remove(self, path: Path) -> None:
        """Remove a name of a file."""
        path.unlink()


#: Makes all changes of stores in this process.
disk = Disk()


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    """Close a file's descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Writer(RawIOBase):
    """A file that is written through ``disk``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        return disk.write(self._descriptor, memoryview(data)[:CHUNK])

    def fileno(self) -> int:
        return self._descriptor

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Make errors name the final file: the system names the temporary one, or none for a descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
            del error.filename2  # None would be shown as a second name
        raise


def temporary(path: Path) -> Path:
    """Return a unique temporary name in the directory of ``path``."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def stage(path: Path, write: Callable[[BinaryIO], object], *, sync: bool) -> Path:
    """Fill a temporary file next to ``path`` by ``write``; return its name once it is whole (``sync``: on disk)."""
    partial = temporary(path)
    with _about(path):
        descriptor = disk.create(partial)
        try:
            raw = _Writer(descriptor)
            try:
                file = BufferedWriter(raw)
                write(cast(BinaryIO, file))
                file.flush()
                if sync:
                    disk.sync(descriptor)
            finally:
                raw.close()
        except BaseException:
            discard(partial)
            raise
    return partial


def replace(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write ``data`` to ``path`` atomically; without ``sync`` only a power cut can lose it."""
    partial = stage(path, lambda file: file.write(data), sync=sync)
    try:
        with _about(path):
            disk.rename(partial, path)
    except OSError:
        discard(partial)
        raise
    if sync:
        sync_directory(path.parent)


def publish(path: Path, data: bytes, *, sync: bool = True) -> bool:
    """Write ``data`` to ``path`` atomically unless it exists; return whether the file is ours."""
    partial = stage(path, lambda file: file.write(data), sync=sync)
    try:
        with _about(path):
            disk.link(partial, path)
    except FileExistsError:
        # NFS may repeat a request that succeeded; two names for our file mean that the link is ours.
        if partial.stat().st_nlink < 2:
            return False
    except OSError as error:
        if error.errno in NO_LINKS:
            error.strerror = f"hard links do not work here, and a store needs them ({error.strerror})"
        raise
    finally:
        discard(partial)
    if sync:
        sync_directory(path.parent)
    return True


def discard(path: Path) -> None:
    """Delete a file that is not needed; one that cannot be deleted stays until ``flbench gc``."""
    with contextlib.suppress(OSError):
        disk.remove(path)


def make_directory(path: Path, root: Path) -> None:
    """Create a directory and its missing parents below ``root``.

    Raises:
        FileNotFoundError: ``root`` is missing: a deleted store must not come back in pieces.
    """
    if path == root:
        root.stat()
        return
    try:
        _make_one(path)
    except FileNotFoundError:
        make_directory(path.parent, root)
        _make_one(path)


def _make_one(path: Path) -> None:
    try:
        disk.mkdir(path)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path)) from None


def sync_directory(path: Path) -> None:
    """Sync a directory, so that its names survive a power cut."""
    # Some network file systems refuse to sync a directory, and keep names in order themselves.
    with _closing(open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor, contextlib.suppress(OSError):
        disk.sync(descriptor)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on disk."""
    with _closing(disk.open(path)) as descriptor:
        disk.sync(descriptor)


def append_line(path: Path, line: str) -> None:
    """Append a line in one write, so that a reader sees all of it, none, or (after a crash) a torn last line."""
    with _closing(disk.open(path, append=True)) as descriptor, _about(path):
        _write_all(descriptor, line.encode(errors="replace") + b"\n")


def create(path: Path, data: bytes) -> None:
    """Create a file in a directory that only this process uses."""
    with _closing(disk.create(path)) as descriptor:
        _write_all(descriptor, data)


def overwrite(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Overwrite the start of an existing file, which needs no new space and thus works on a full disk."""
    with _closing(disk.open(path)) as descriptor:
        _write_all(descriptor, data)
        if sync:
            disk.sync(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes: on a nearly full disk, the first write may be short and only the next one raise."""
    left = memoryview(data)
    while left:
        left = left[disk.write(descriptor, left) :]


def read_bytes(path: Path | str) -> bytes | None:
    """Return the bytes of a file; None where it is absent, or no regular file (a directory, a FIFO).

    Raises:
        OSError: the file cannot be read, so that its content is unknown.
    """
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError, NotRegular):
        return None


def reason(error: OSError) -> str:
    """Return the operating system's error and its file, in one line."""
    what = error.strerror or str(error) or type(error).__name__
    return (
        f"{os.fsdecode(error.filename):.500}: {what}" if isinstance(error.filename, str | bytes | os.PathLike) else what
    )


def last_line(path: Path) -> bytes:
    """Return the last whole line of a file with its newline, read from the end; empty if no line is whole."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        window = 1 << 14
        while True:
            file.seek(max(0, size - window))
            whole, _, _ = file.read().rpartition(b"\n")
            _, newline, line = whole.rpartition(b"\n")
            if newline or window >= size:
                return line + b"\n" if line else b""
            window *= 8


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
