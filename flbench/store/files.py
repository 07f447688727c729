"""Files that are whole or absent: unique temporary name, fsync, then rename (replace) or link (first writer wins).

Temporary files start with a dot, so that no reader takes one for the real thing. They get the user's umask, so that a
group can read what one of its members wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO


def temporary(path: Path) -> Path:
    """A name beside ``path`` that nobody else uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def stage(path: Path, write: Callable[[BinaryIO], object], *, sync: bool) -> Path:
    """Let ``write`` fill a temporary file beside ``path``; return its name once it is whole (``sync``: on disk)."""
    partial = temporary(path)
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), "wb") as file:
            write(file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def replace(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put ``data`` at ``path`` in one step; without ``sync`` only a power cut can lose it."""
    stage(path, lambda file: file.write(data), sync=sync).rename(path)
    if sync:
        sync_directory(path.parent)


def publish(path: Path, data: bytes) -> bool:
    """Put ``data`` at ``path`` unless something is there; say whether it is ours that lies there now."""
    partial = stage(path, lambda file: file.write(data), sync=True)
    try:
        os.link(partial, path)
    except FileExistsError:
        # NFS may repeat a request that succeeded; two names for our file mean that the link is ours.
        if partial.stat().st_nlink < 2:
            return False
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Some network file systems refuse to sync a directory, and keep names in order themselves.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Add a line in one write, so that a reader sees all of it, none, or (after a crash) a torn tail."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where it is absent, unreadable as JSON, or no object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """The whole JSON objects at the start of a file of lines: whatever follows a torn line is dropped."""
    records = []
    for line in data.split(b"\n")[:-1]:  # what follows the last newline is a torn tail
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


def last_line(path: Path) -> bytes:
    """The last whole line of a file, with its newline, read from the end; empty where there is none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        window = 1 << 14
        while True:
            file.seek(max(0, size - window))
            whole, _, _ = file.read().rpartition(b"\n")
            _, newline, line = whole.rpartition(b"\n")
            if newline or window >= size:
                return line + b"\n" if line else b""
            window *= 8


def join_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """The opposite of ``parse_lines``."""
    return b"".join(to_line(record).encode() + b"\n" for record in records)


def to_line(record: Mapping[str, Any]) -> str:
    """One record as strict JSON; infinities and NaN become null."""
    try:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def pretty(value: Any) -> bytes:
    """JSON for people and programs."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
