"""The ways in which a command that prints on and on comes to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

#: Exit code of what Ctrl-C ended.
INTERRUPTED = 130


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Let Ctrl-C, and a reader that has seen enough (``| head``), end a command without a word."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        _drop_buffered_output()  # the interrupt may have come after it was written, and it would be written again
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_buffered_output()  # the interpreter would complain about it when it ends


def _drop_buffered_output() -> None:
    with suppress(OSError):  # a test's standard output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
