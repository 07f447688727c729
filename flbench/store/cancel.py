"""Marks in the store that ask for an end: whoever works on what is marked sees it within a second, wherever it runs.

A mark on a plan ends its workers and its orchestrators; the next ``flbench sweep`` takes it away. A mark on an attempt
ends that one run. Nothing is lost either way: a checkpoint is written after the round that was going on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flbench.store import files, strict_json

#: Seconds between two looks at a mark.
GLANCE = 1.0

#: Kind of exit.json of a run that somebody cancelled by name.
CANCELLED = "cancelled"


class Mark:
    """A file that says: come to an end."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "cancel.json"

    def put(self, by: str) -> None:
        """Ask for an end."""
        content = {"by": by, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        files.replace(self.path, strict_json.pretty(content), sync=False)

    def is_put(self) -> bool:
        """Return whether an end is asked for."""
        return self.path.exists()

    def take_away(self) -> None:
        """Ask no more."""
        if self.is_put():  # a store that is read-only here has none
            files.disk.remove(self.path)


class Glance:
    """Whether any of some reasons to stop holds, checked once a second at most: for loops that ask every round."""

    def __init__(self, reasons: Iterable[Callable[[], bool]]) -> None:
        self._reasons = list(reasons)
        self._seen = False
        self._next = 0.0

    def __call__(self) -> bool:
        """Once a reason was seen it stays seen."""
        now = time.monotonic()
        if not self._seen and now >= self._next:
            self._seen = any(holds() for holds in self._reasons)
            self._next = now + GLANCE
        return self._seen
