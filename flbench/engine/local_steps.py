"""The numbers of local steps of clients, which are fixed or drawn (``config.local_steps``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from flbench.config import Federated, Training
from flbench.config.local_steps import Distribution, distribution_of, most_steps
from flbench.data.batches import Rows, steps_of_epochs
from flbench.streams import stream

#: Returns the numbers of steps of the participants of a round.
DrawSteps = Callable[[Rows, int], list[int]]


def local_steps(experiment: Training, rows: Rows, number: int | None = None) -> int:
    """Return the local steps in a round of a client with these rows.

    Args:
        experiment: the client's.
        rows: its training rows.
        number: of steps or epochs, as the experiment counts; None: the largest that is drawn.
    """
    if experiment.local_steps is not None:
        return most_steps(experiment.local_steps) if number is None else number
    epochs = most_steps(cast(int | str, experiment.local_epochs)) if number is None else number
    drop_last = experiment.drop_last if isinstance(experiment, Federated) else True
    return steps_of_epochs(len(rows), epochs=epochs, batch_size=experiment.batch_size, drop_last=drop_last)


def drawn_steps(experiment: Federated, rows: Sequence[Rows]) -> DrawSteps | None:
    """Return what draws the local steps of clients with these rows; None if they are fixed."""
    number = experiment.local_steps if experiment.local_epochs is None else experiment.local_epochs
    if not isinstance(number, str):
        return None
    distribution = distribution_of(number)

    def draw(cohort: Rows, round: int) -> list[int]:
        numbers = numbers_of(distribution, experiment.seed, round, cohort.tolist(), len(rows))
        return [local_steps(experiment, rows[k], number) for k, number in zip(cohort, numbers, strict=True)]

    return draw


def numbers_of(distribution: Distribution, seed: int, round: int, cohort: Sequence[int], clients: int) -> list[int]:
    """Return what the participants of a round draw, of this many clients of the run.

    The number of a client is keyed by the seed, the client and the round, so that it does not depend on the others.
    """
    when = () if distribution.fixed else (round,)
    slow = set(cohort)
    if distribution.share < 1:
        among = range(clients) if distribution.fixed else cohort
        at_full = int(np.rint(len(among) * (1 - distribution.share)))  # half to even, as in FedProx's code
        order = stream(seed, "stragglers", *when).permutation(len(among))
        slow = {among[at] for at in order[at_full:]}
    low, high = distribution.low, distribution.high
    return [
        int(stream(seed, "local steps", client, *when).integers(low, high, endpoint=True))
        if client in slow
        else distribution.full
        for client in cohort
    ]
