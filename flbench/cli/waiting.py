"""Show what a command waits for if it takes longer: in one line of a terminal, in a few lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console

from flbench.cli.screen import can_redraw
from flbench.literal import visible

#: Seconds before the first text; seconds between two drawings on a terminal; longest pause between lines elsewhere.
AFTER, REDRAW, LONGEST_PAUSE = 2.0, 0.2, 60.0


class Waiting:
    """Shows the present step on standard error, also while that step blocks; lines of the result go to ``write``.

    With ``quiet`` no steps are shown.
    """

    def __init__(self, write: Callable[[str], None], *, quiet: bool = False) -> None:
        self._write, self._doing, self._drawn = write, "", False
        self._console = Console(stderr=True)
        self._lock, self._over = threading.Lock(), threading.Event()
        show = self._redraw if can_redraw(self._console) else self._print
        self._thread = threading.Thread(target=self._over.wait if quiet else show, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._clear()

    def say(self, line: str) -> None:
        """Write a line of the result."""
        with self._lock:
            self._clear()
            self._write(line)

    def show(self, doing: str) -> None:
        """Show a step in place of the one before."""
        self._doing = doing

    def _redraw(self) -> None:
        pause = AFTER
        while not self._over.wait(pause):
            pause = REDRAW
            with self._lock:
                self._clear()
                sys.stderr.write(visible(self._doing)[: self._console.width - 1])
                sys.stderr.flush()
                self._drawn = True

    def _print(self) -> None:
        pause = AFTER
        while not self._over.wait(pause):
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                print(visible(self._doing), file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
