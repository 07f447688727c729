"""A time limit for a step of a test, so that a hang fails with a traceback instead of blocking the test run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

#: Share of the limit that a process has to compute within the limit; below it, the process counts as idle.
IDLE = 0.005

#: The wall time allowed, in limits. A loaded machine gives each process only a part of a core.
WALL = 10


class Hangs(BaseException):
    """The time limit was exceeded. No handler for ordinary errors catches this exception."""


@dataclass
class Watch:
    """Decides from successive readings of the wall clock and of the process's CPU clock whether a limit is exceeded.

    Wall time alone would blame the process for the load of the machine.
    """

    seconds: float
    wall: float
    cpu: float

    def __post_init__(self) -> None:
        self._active_wall, self._active_cpu = self.wall, self.cpu  # when the process was last seen computing

    def problem(self, wall: float, cpu: float) -> str | None:
        """Return why the limit is exceeded, or None."""
        if cpu - self._active_cpu > IDLE * self.seconds:
            self._active_wall, self._active_cpu = wall, cpu
        if cpu - self.cpu > self.seconds:
            return f"not finished after {self.seconds} s of CPU time"
        if wall - self._active_wall > self.seconds:
            return f"idle for {self.seconds} s"
        if wall - self.wall > WALL * self.seconds:
            return f"not finished after {WALL * self.seconds} s"
        return None


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until a condition is true; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``Hangs`` in the main thread after ``seconds`` of CPU time or idleness, or ``WALL`` times as long in all.

    The clocks are read ten times per limit. A timer's signal interrupts a blocked system call and a long regular
    expression; a watching thread would not.
    """
    watch = Watch(seconds, time.monotonic(), time.process_time())

    def check(number: int, frame: FrameType | None) -> None:
        if problem := watch.problem(time.monotonic(), time.process_time()):
            raise Hangs(problem)

    before = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, seconds / 10, seconds / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
