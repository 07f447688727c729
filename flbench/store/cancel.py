"""Marks in the store that ask workers to stop. A worker on any machine sees one within a second.

A mark on a plan stops its workers and orchestrators; the next ``flbench sweep`` clears it. A mark on an attempt stops
that run. Either way the worker writes a checkpoint after the current round, so nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flbench.store import files, strict_json

#: Seconds between two checks of a mark.
CHECK_SECONDS = 1.0

#: Kind of exit.json of a run that a user cancelled by name.
CANCELLED = "cancelled"


class CancelMark:
    """A file that asks for a stop."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "cancel.json"

    def put(self, by: str) -> None:
        """Ask for a stop; ``by`` is the command that does."""
        content = {"by": by, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        files.replace(self.path, strict_json.pretty(content), sync=False)

    def is_set(self) -> bool:
        """Return whether a stop is asked for."""
        return self.path.exists()

    def clear(self) -> None:
        """Withdraw the request."""
        if self.is_set():  # a read-only store has none, and removing would fail
            files.disk.remove(self.path)


class StopCheck:
    """Whether any of some reasons to stop holds, checked at most once a second: for loops that ask in every round."""

    def __init__(self, reasons: Iterable[Callable[[], bool]]) -> None:
        self._reasons = list(reasons)
        self._seen = False
        self._next = 0.0

    def __call__(self) -> bool:
        """Return whether a reason holds, or did at an earlier call."""
        now = time.monotonic()
        if not self._seen and now >= self._next:
            self._seen = any(holds() for holds in self._reasons)
            self._next = now + CHECK_SECONDS
        return self._seen
