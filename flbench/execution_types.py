"""What a worker gives to the execution of its runs, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flbench.choices import Executor, UsedDevice
from flbench.store import Attempt


@dataclass(frozen=True)
class Settings:
    """Where and how to execute runs; no field changes a run id.

    Attributes:
        data_root: folder of the data sets; None: the default one.
        device: what the runs compute on.
        executor: how clients are trained.
        pool: threads of the loop executor (``resources.cpus``).
        neighbours: workers that share the memory, this one included.
    """

    data_root: Path | None = None
    device: UsedDevice = "cpu"
    executor: Executor = "auto"
    pool: int = 1
    neighbours: int = 1


@dataclass(frozen=True)
class Outcome:
    """How an execution ended: with a published result, or, if it was stopped, with a checkpoint."""

    status: Literal["done", "diverged", "stopped"]
    round: int


#: Called once for each run of a group, with its outcome or the exception that ended it.
Ended = Callable[[Attempt, Outcome | Exception], None]
