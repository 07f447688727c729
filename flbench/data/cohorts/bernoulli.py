"""Cohorts that clients join independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flbench.data.arrays import Ints
from flbench.data.cohorts.base import Population, Sampler
from flbench.registry import SAMPLERS


@SAMPLERS.register("bernoulli")
@dataclass(frozen=True)
class Bernoulli(Sampler):
    """Each client joins a round with the probability ``participation``, independently of the others.

    A cohort without a client is drawn again, as in FL-Simulator: the mean of no changes does not exist. The sizes are
    therefore those of a binomial distribution without 0.
    """

    source: ClassVar[str] = "the code of FL-Simulator (woodenchild95/FL-Simulator), server.py"
    varies: ClassVar[bool] = True

    def problem(self, clients: int, participation: float) -> str | None:
        if clients * participation >= 1:
            return None
        return (
            f"{participation:g} of {clients} clients is less than one in a round on average, and empty cohorts are "
            f"drawn again; use at least {1 / clients:.3g}"
        )

    def cohort(self, population: Population, round: int) -> Ints:
        draws = population.stream(round)
        while True:
            joins_N = draws.random(population.clients) < population.participation
            if joins_N.any():
                return np.flatnonzero(joins_N)
