"""Cohorts of one group of clients after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from flbench.config import cohort_size
from flbench.data.arrays import Ints
from flbench.data.cohorts.base import Population, Sampler
from flbench.registry import SAMPLERS


@SAMPLERS.register("cyclic")
@dataclass(frozen=True)
class Cyclic(Sampler):
    """Groups of clients are available in turn (CyCP); the cohort is drawn uniformly from the group of the round.

    Attributes:
        groups: number of groups; their sizes differ by at most one.
        by: how clients are grouped. ``random``: by a permutation. ``class``: sorted by the class of which they have
            most samples, so that the groups differ in their data, as day and night do.
    """

    shorthand: ClassVar[str] = "groups"
    source: ClassVar[str] = "@cho2023cyclic, Algorithm 1"

    groups: Annotated[int, Field(ge=2)]
    by: Literal["random", "class"] = "random"

    def problem(self, clients: int, participation: float) -> str | None:
        size, smallest = cohort_size(clients, participation), clients // self.groups
        if size <= smallest:
            return None
        advice = f"use at most {smallest / clients:.3g}" if smallest else f"use at most {clients} groups"
        return f"{self.groups} groups of {clients} clients have {smallest} or more each, fewer than {size}; {advice}"

    def cohort(self, population: Population, round: int) -> Ints:
        order = population.stream().permutation(population.clients)
        if self.by == "class":
            order = order[np.argsort(population.counts_NC[order].argmax(1), kind="stable")]
        members = np.sort(np.array_split(order, self.groups)[round % self.groups])
        return np.sort(population.stream(round).choice(members, population.size, replace=False))
