"""Many workers on few cores, each with a clock of its own: the time that they would take on as many cores.

The workers are processes, of which one runs at a time: the one whose clock is behind all others. Its clock advances by
what it sleeps and by a fixed cost for every operation on files, which includes the computation until the next one. It
hands over before every operation but ``stat``, so that workers interleave as on cores of their own, and race for the
same run. Not simulated: locks inside the kernel, memory bandwidth, and a file system's latency other than of syncs.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flbench.store import files

#: Operations on files, as Python's audit hooks name them; ``stat`` has no name there.
OPERATIONS = frozenset({"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.link", "os.remove"})

fork = multiprocessing.get_context("fork")


class Costs(NamedTuple):
    """Seconds of one call of ``stat``, of each other operation, and of a sync."""

    stat: float
    other: float
    sync: float


@dataclass
class Worker:
    """A process with its own clock, in seconds.

    Attributes:
        trained: the seconds that it slept for its runs.
        operations: how often it did what to a file.
        result: what its function returned.
        ended: its time at its end.
    """

    number: int
    costs: Costs
    clocks: Any
    turns: Sequence[Any]
    trained: float = 0.0
    operations: Counter[str] = field(default_factory=Counter)
    result: Any = None
    ended: float = 0.0

    @property
    def now(self) -> float:
        """Its time."""
        return float(self.clocks[self.number])

    def train(self, seconds: float) -> None:
        """Sleep for a run."""
        self.trained += seconds
        self.clocks[self.number] += seconds

    def act(self, function: Callable[[Worker], Any]) -> None:
        """Take part until ``function`` has returned."""
        self._install()
        self.turns[self.number].acquire()
        self.result = function(self)
        self.ended, self.clocks[self.number] = self.now, math.inf
        self._wake_next()

    def _wake_next(self) -> bool:
        """Let the worker continue whose clock is behind all others; return whether it is another one."""
        first = min(range(len(self.clocks)), key=self.clocks.__getitem__)
        if self.clocks[first] < self.now:
            self.turns[first].release()
            return True
        return False

    def _charge(self, operation: str, seconds: float) -> None:
        self.operations[operation] += 1
        self.clocks[self.number] += seconds

    def _install(self) -> None:
        """Make this process hand over, ask its own clock for the time, and sleep instead of syncing."""
        real_stat = os.stat

        def stat(*arguments: Any, **options: Any) -> os.stat_result:
            self._charge("stat", self.costs.stat)
            return real_stat(*arguments, **options)

        def audit(event: str, arguments: Any) -> None:
            if event in OPERATIONS and not (event == "open" and arguments[1]):  # a call of open also calls os.open
                self._charge("other", self.costs.other)
                if self._wake_next():
                    self.turns[self.number].acquire()

        class SlowDisk(files.Disk):
            def sync(_, descriptor: int) -> None:
                self._charge("sync", self.costs.sync)

        os.stat, time.monotonic, files.disk = stat, lambda: self.now, SlowDisk()
        sys.addaudithook(audit)


def simulate(functions: Sequence[Callable[[Worker], Any]], costs: Costs) -> list[Worker]:
    """Let each function act as one worker; return the workers, with what they did, when all have ended."""
    clocks, results = fork.RawArray("d", len(functions)), fork.SimpleQueue()
    turns = [fork.Semaphore(0) for _ in functions]

    def act(number: int) -> None:
        worker = Worker(number, costs, clocks, turns)
        try:
            worker.act(functions[number])
        finally:
            worker.clocks, worker.turns = None, ()
            results.put(worker)

    processes = [fork.Process(target=act, args=(number,)) for number in range(len(functions))]
    for process in processes:
        process.start()
    turns[0].release()
    workers = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return sorted(workers, key=lambda worker: worker.number)
