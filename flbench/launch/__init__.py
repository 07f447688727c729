"""Launchers start workers, and nothing else: which run a worker takes, it decides itself, by claiming."""

from __future__ import annotations

from typing import Protocol

from flbench.errors import UserError

#: Recorded as the end of a worker that the user's second Ctrl-C kills, so that its runs are charged no failed attempt.
KILLED = "its worker was killed by a second interrupt"


class Launcher(Protocol):
    """What the orchestrator needs of any way to start workers."""

    @property
    def slots(self) -> int:
        """How many workers this machine, or this request, has room for."""

    def start(self, count: int, starved: int = 0) -> None:
        """Start that many workers more, ``starved`` of them for runs that ran out of memory."""

    def alive(self) -> int:
        """How many of the started workers still work."""

    def tokens(self) -> set[str]:
        """The names of all workers it has started."""

    def drain(self) -> None:
        """Ask them to stop at the end of their round."""

    def kill(self) -> None:
        """Stop them now, at the user's request: charge no run with a failed attempt."""

    def crash_log(self) -> str:
        """Where the worker that crashed last logged, and the end of that log; empty if none did."""


class WorkersCrash(UserError):
    """Workers end as soon as they begin."""

    exit_code = 3
