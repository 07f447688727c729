"""Where commands meet the system: what cannot be read, written or printed ends as one message, not as a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from typer.core import TyperGroup

from flbench.errors import StoreUnusable, UserError


class OutputLost(UserError):
    """Standard output cannot be written."""


class Commands(TyperGroup):
    """The commands; an error of the operating system that none of them expected becomes a message."""

    def invoke(self, ctx: Any) -> Any:
        """Return the result of a command.

        Raises:
            StoreUnusable: a file of a store cannot be read or written.
            UserError: any other file cannot.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read the output has seen enough
        except OSError as error:
            raise _blame(error) from error


def _blame(error: OSError) -> UserError:
    from flbench.store import Store, files

    store = next((path for path in _parents(error) if Store.exists(path)), None)
    if store is None:
        return UserError(files.reason(error))
    return StoreUnusable(f"the store {store} cannot be used: {files.reason(error)}")


def _parents(error: OSError) -> list[Path]:
    name = error.filename
    return list(Path(os.fsdecode(name)).parents) if isinstance(name, str | bytes | os.PathLike) else []


def check_environment() -> None:
    """Raise UserError where no command can work, whatever it is."""
    try:
        os.getcwd()  # noqa: PTH109  Path.cwd is the same
    except OSError as error:
        raise UserError(
            f"the working directory cannot be used: {error.strerror}; change to a directory that exists"
        ) from None
    # Arguments end up in plans, scripts and pages, all of which are UTF-8.
    given = [*sys.argv[1:], *(f"{name}={text}" for name, text in os.environ.items() if name.startswith("FLBENCH_"))]
    for text in given:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{os.fsencode(text)!r:.200}: expected text in UTF-8; rename the file or folder") from None


class _Output(io.TextIOWrapper):
    """A standard stream; once it cannot be written, what else is written to it is dropped.

    The layers below are C code: an interrupt cannot come between a write and the buffer's note of it, which would write
    the same text twice.
    """

    def __init__(self, descriptor: int, *, strict: bool, **options: Any) -> None:
        super().__init__(io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)), **options)
        self._descriptor, self._strict = descriptor, strict

    def write(self, text: str) -> int:
        with self._failure_is_final():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._failure_is_final():
            super().flush()

    @contextmanager
    def _failure_is_final(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._descriptor)
            super().flush()
            if self._strict and isinstance(error, BrokenPipeError):
                raise
            if self._strict:
                raise OutputLost(f"standard output cannot be written: {error.strerror}") from None


@contextmanager
def guarded_output() -> Iterator[None]:
    """Let nothing about the standard streams end a command as if something else were wrong.

    What an output's encoding lacks is replaced, a closed one is written to nowhere, and one that cannot be written
    (its disk is full) raises OutputLost, which no handler takes for an error of the store.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    before = sys.stdout, sys.stderr
    sys.stdout = _guarded(sys.stdout, sys.__stdout__, 1)
    sys.stderr = _guarded(sys.stderr, sys.__stderr__, 2)
    try:
        yield
    finally:
        with suppress(BrokenPipeError, ValueError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def _guarded(stream: TextIO | None, original: TextIO | None, descriptor: int) -> TextIO:
    """The stream itself where something has taken the place of the process's own (a test that captures it)."""
    if stream is not None and stream is not original:
        return stream
    return _Output(
        descriptor,
        strict=descriptor == 1,
        encoding=stream.encoding if stream else "utf-8",
        errors="replace",
        line_buffering=bool(stream and stream.line_buffering),
        write_through=isinstance(stream, io.TextIOWrapper) and stream.write_through,
    )
