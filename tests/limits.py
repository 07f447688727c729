"""A limit on the time of a test's step: a hang is a failure with a traceback, not a job that never ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Hangs(BaseException):
    """No answer in time; no handler for ordinary errors swallows it."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise Hangs in the main thread after so many seconds."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
