"""The ways in which a command that prints on and on comes to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # What is still in the buffer goes nowhere: the interpreter would complain about it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
