"""Cohorts in which some clients are more often than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from flbench.data.arrays import Ints
from flbench.data.cohorts.base import Population, Sampler
from flbench.registry import SAMPLERS


@SAMPLERS.register("skewed")
@dataclass(frozen=True)
class Skewed(Sampler):
    """A fixed number of clients, drawn one after another with unequal probabilities, without replacement.

    Each draw takes client k, of those that are left, with a probability in proportion to a_k^-power or m_k^power.

    Attributes:
        power: of the probabilities; 0 would be uniform.
        by: ``rank``: a_k is a random permutation of 1, ..., N, so that the probabilities are a power law. ``size``: m_k
            is the number of training samples.
    """

    shorthand: ClassVar[str] = "power"
    equation: ClassVar[str] = "p_k ~ a_k^-power, or p_k ~ m_k^power"
    source: ClassVar[str] = ""

    power: Annotated[float, Field(gt=0, le=100)] = 1.0
    by: Literal["rank", "size"] = "rank"

    def cohort(self, population: Population, round: int) -> Ints:
        if self.by == "rank":
            logs_N = -np.log(population.stream().permutation(population.clients) + 1)
        else:
            logs_N = np.log(population.counts_NC.sum(1))
        # The clients with the first of independent exponential times of these rates are such a cohort (Efraimidis and
        # Spirakis 2006); their logarithms do not overflow.
        times_N = np.log(population.stream(round).exponential(size=population.clients)) - self.power * logs_N
        return np.sort(np.argsort(times_N, kind="stable")[: population.size])
