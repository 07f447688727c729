"""Launchers start workers. Workers choose their runs themselves, by claiming them in the store."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Protocol

from flbench.errors import UserError
from flbench.store import Store
from flbench.store.attempts import ending

#: The seconds that a round takes as long as nothing is known about it.
ROUND_SECONDS = 0.1

#: Lines of a log that an error message quotes.
LOG_LINES = 15


class Launcher(Protocol):
    """What the orchestrator needs of a way to start workers."""

    @property
    def slots(self) -> int:
        """Return how many workers fit on this machine, or were requested."""

    @property
    def start_seconds(self) -> float:
        """Return the seconds of work that a worker must have for its start to pay; 0: one run is always enough."""

    @property
    def delayed(self) -> str:
        """Return why no worker can start for now; '' if one can."""

    def start(self, count: int, out_of_memory: int = 0) -> int:
        """Start ``count`` more workers, ``out_of_memory`` of them for runs that ran out of memory; return how many."""

    def alive(self) -> int:
        """Return how many of the started workers are alive."""

    def tokens(self) -> set[str]:
        """Return the names of all workers that this launcher has started."""

    def drain(self) -> None:
        """Ask the workers to stop at the end of their current round."""

    def kill(self) -> None:
        """Kill the workers at the user's request, after ``record_user_kill`` for each."""

    def crash_log(self) -> str:
        """Return the end of the log of the worker that crashed last, with its path; '' if no worker crashed."""


def workers_worth(seconds: float, start_seconds: float) -> int:
    """Return how many workers it pays to start for so many seconds of work, at least one."""
    return max(1, math.ceil(seconds / start_seconds)) if start_seconds else sys.maxsize


class WorkersCrash(UserError):
    """Workers end right after they start."""

    exit_code = 3


def record_user_kill(store: Store, token: str) -> None:
    """Record that the user's second Ctrl-C kills a worker, so that its runs are charged no failed attempt."""
    store.record_death(token, ending("interrupted", "its worker was killed by a second interrupt"))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def end_of_log(log: Path, note: str = "") -> str:
    """Return a log's path, with a note, and its last lines."""
    return "\n".join([f"{log}{note} ends with:", *read_lines(log)[-LOG_LINES:]])
