"""The time limit of tests: it stops hangs, and does not depend on the load of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.limits import WALL, Hangs, Watch, time_limit


def test_a_busy_loop_exceeds_the_cpu_limit() -> None:
    with pytest.raises(Hangs, match=r"after 0.5 s of CPU time"), time_limit(0.5):
        while True:
            pass


def test_a_blocked_system_call_counts_as_idle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Hangs, match=r"idle for 1 s"), time_limit(1):
        (tmp_path / "fifo").read_bytes()


def test_a_finished_step_raises_nothing_later() -> None:
    with time_limit(0.1):
        pass
    time.sleep(0.3)


def test_a_slow_process_is_stopped_only_by_the_wall_limit() -> None:
    """On a loaded machine the process gets a tenth of a core: 10 s of wall time for each second of work."""
    watch = Watch(60, wall=1000, cpu=5)
    readings = [watch.problem(1000 + 10 * step, 5 + step) for step in range(1, 61)]
    assert readings == [None] * 60
    assert watch.problem(1000 + 60 * WALL + 1, 65) == "not finished after 600 s"


def test_idleness_is_counted_from_the_last_work() -> None:
    watch = Watch(60, wall=0, cpu=0)
    assert watch.problem(50, 1) is None
    assert watch.problem(100, 1.1) is None
    assert watch.problem(111, 1.2) == "idle for 60 s"
