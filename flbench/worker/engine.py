"""The interface between the worker and the engine that trains its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from flbench.config import Experiment
from flbench.execution_types import Ended
from flbench.store import Attempt
from flbench.worker.options import Options


class Engine(Protocol):
    """Executes claimed runs (``flbench.execution`` with its settings)."""

    def check(self, experiment: Experiment) -> None:
        """Raise UserError if the experiment's data cannot be used here."""

    def group_size(self, experiment: Experiment) -> int:
        """Return how many runs like this one are worth training together; 1: it trains alone."""

    def execute(self, group: Sequence[Attempt], *, should_stop: Callable[[], bool], ended: Ended) -> None:
        """Train the runs of a group (at most ``group_size``), record their metrics, publish their results."""


def load_engine(options: Options) -> Engine:
    """Return the engine; imports torch, which takes seconds and is paid once per worker."""
    import torch

    from flbench.execution import Runner

    # One thread: several per worker are slower when there are several workers, and sums depend on their number.
    torch.set_num_threads(1)
    return Runner(options)
