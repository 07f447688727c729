"""What every sampler of cohorts offers.

A sampler decides who takes part in a round, as a pure function of the run's clients, its seed and the round. It can
therefore be asked for any round, in any order and again.

Shapes: N clients, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from flbench.config import cohort_size
from flbench.data.arrays import Ints
from flbench.errors import UserError
from flbench.messages import hook_at
from flbench.registry import Component
from flbench.streams import stream


@dataclass(frozen=True, eq=False)
class Population:
    """The clients of a run, from which cohorts are drawn.

    Attributes:
        counts_NC: training samples of each client by class.
        participation: of the experiment: the share of the clients that train in a round.
        seed: of the run.
    """

    counts_NC: Ints
    participation: float
    seed: int

    @cached_property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.counts_NC)

    @cached_property
    def size(self) -> int:
        """How many clients ``participation`` is, rounded; at least one."""
        return cohort_size(self.clients, self.participation)

    def stream(self, *indices: int) -> np.random.Generator:
        """Return new random numbers for these indices, such as the round; none: for the whole run."""
        return stream(self.seed, "cohort", *indices)


@dataclass(frozen=True)
class Sampler(Component, ABC):
    """Base of the samplers."""

    #: Whether the number of participants differs between rounds. On a GPU such rounds are not recorded as a graph, and
    #: on a CPU each run trains alone.
    varies: ClassVar[bool] = False

    def problem(self, clients: int, participation: float) -> str | None:
        """Return why ``participation`` does not fit this number of clients, or None."""
        return None

    @abstractmethod
    def cohort(self, population: Population, round: int) -> Ints:
        """Return the numbers of a round's participants, ascending; at least one."""


def cohort_of(sampler: Sampler, population: Population, round: int) -> Ints:
    """Return the participants of a round.

    Raises:
        UserError: the sampler returned something else than ascending numbers of clients, or another number of them
            than ``participation`` although it does not vary.
    """
    found = np.asarray(sampler.cohort(population, round))
    numbers = found.ndim == 1 and found.dtype.kind in "iu" and len(found) > 0
    ascending = numbers and found[0] >= 0 and found[-1] < population.clients and bool((found[1:] > found[:-1]).all())
    if not ascending or not (sampler.varies or len(found) == population.size):
        wanted = "at least one" if sampler.varies else f"{population.size}"
        raise UserError(
            f"{hook_at(type(sampler), 'cohort', 'sampler')} must return {wanted} of the clients 0 to "
            f"{population.clients - 1} as whole numbers in ascending order; "
            f"in round {round} it returned {found.tolist()}"
        )
    return found.astype(np.int64, copy=False)
