"""Where commands meet the system: what cannot be read, written or printed ends as one message, not as a traceback.

Also how commands print JSON and end on Ctrl-C, so that all of them do it alike.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import typer

from flbench.errors import PROCESS_ENDS, UserError, check_platform, check_utf8


class OutputLost(UserError):
    """Standard output cannot be written."""


#: Exit code after Ctrl-C.
INTERRUPTED = 130


#: Variables of the shell or a notebook that would change figures, or fail as a library is imported, also in processes
#: that a command starts: matplotlib's (a notebook names a backend that need not be installed here), and one that numpy
#: and matplotlib read as a number.
_LIBRARY_VARIABLES = ("MPLBACKEND", "MATPLOTLIBRC", "SOURCE_DATE_EPOCH")


def prepare_environment() -> None:
    """Remove the variables of libraries; raise UserError if no command can work here."""
    for name in _LIBRARY_VARIABLES:
        os.environ.pop(name, None)
    check_platform()
    try:
        os.getcwd()  # noqa: PTH109  Path.cwd is the same
    except OSError as error:
        raise UserError(
            f"the working directory cannot be used: {error.strerror}; change to a directory that exists"
        ) from None
    # Arguments end up in plans, scripts and pages, all of which are UTF-8.
    given = [*sys.argv[1:], *(f"{name}={text}" for name, text in os.environ.items() if name.startswith("FLBENCH_"))]
    for text in given:
        check_utf8(text)


@contextmanager
def plugin_mistakes() -> Iterator[None]:
    """Report an error in a component of another package as a UserError: the mistake is its author's, not flbench's.

    So is a ``sys.exit()`` there, which would end the command as a success. Commands themselves end in this way.
    """
    try:
        yield
    except UserError:
        raise
    except PROCESS_ENDS as error:
        registry = sys.modules.get("flbench.registry")  # without it no component was loaded
        if registry is None or (message := registry.plugin_mistake(error)) is None:
            raise
        raise UserError(message) from error
    except Exception as error:
        from flbench.registry import plugin_mistake  # slow, and after an error only

        if (message := plugin_mistake(error)) is None:
            raise
        raise UserError(message) from error


class _Output(io.TextIOWrapper):
    """A standard stream; once it cannot be written, further text is dropped.

    The layers below are C code: an interrupt cannot come between a write and the buffer's record of it, which would
    write the same text twice.
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
    """Keep problems of the standard streams from ending a command with a misleading error.

    Characters that the output's encoding lacks are replaced, a closed stream is written to nowhere, and one that cannot
    be written (its disk is full) raises OutputLost, which no handler mistakes for an error of the store.
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
    """Return the guarded stream; a stream that replaces the process's own (a test captures it) is returned as it is."""
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


@contextmanager
def ends_quietly() -> Iterator[None]:
    """End a command without a message on Ctrl-C, and when the reader of its output closes the pipe (``| head``)."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        pass  # the stream drops what is left


def announce(text: str) -> None:
    """Say on a terminal what takes seconds, before it begins; nothing where a pipe or a file takes the output."""
    if text and sys.stdout.isatty() and sys.stderr.isatty():
        if not (text.isascii() and text.isprintable()):
            from flbench.literal import visible  # takes a quarter of a second

            text = visible(text)
        print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print what ``--json`` promises: one JSON document on standard output; raises ValueError for NaN."""
    print(json.dumps(value, indent=1, allow_nan=False), flush=True)
