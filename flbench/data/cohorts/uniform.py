"""Uniform cohorts of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flbench.data.arrays import Ints
from flbench.data.cohorts.base import Population, Sampler
from flbench.registry import SAMPLERS


@SAMPLERS.register("uniform")
@dataclass(frozen=True)
class Uniform(Sampler):
    """A fixed number of clients, drawn uniformly without replacement in every round."""

    source: ClassVar[str] = ""

    def cohort(self, population: Population, round: int) -> Ints:
        if population.size == population.clients:
            return np.arange(population.clients)
        drawn = population.stream(round).choice(population.clients, population.size, replace=False)
        return np.sort(drawn)
