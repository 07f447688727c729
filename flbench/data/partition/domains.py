"""Partitions of each domain of the data set by itself.

Shapes: K clients, D domains, C classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from flbench.data.arrays import Ints
from flbench.data.partition.base import Partition
from flbench.data.partition.counts import Dirichlet
from flbench.registry import PARTITIONS


def _class_numbers(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", text):
        raise ValueError(f"expected how many classes each client of a domain holds, as in 2-2-3; got {text!r}")
    return text


@PARTITIONS.register("domain-classes")
@dataclass(frozen=True)
class DomainClasses(Partition):
    """The classes of each domain are dealt to its clients, disjointly: ``domain-classes:2-2-3`` for three clients.

    The label-skew paper's PACS (appendix C.2): four domains, three clients each, of which the first two hold two
    classes and the third holds three (figure 9), with all the domain's samples of these classes. Which classes is drawn
    separately for each domain.
    """

    source = "@zhang2024labelskew, appendix C.2"
    shorthand = "sizes"
    by_domain = True

    sizes: Annotated[str, AfterValidator(_class_numbers)]

    @property
    def numbers(self) -> list[int]:
        """How many classes each client of a domain holds."""
        return [int(number) for number in self.sizes.split("-")]

    def problem(self, classes: int, clients: int) -> str | None:
        if len(self.numbers) != clients:
            return f"it has sizes for {len(self.numbers)} clients of a domain, a domain has {clients}"
        if sum(self.numbers) != classes:  # exact: whole numbers
            return f"{self.sizes} deals {sum(self.numbers)} classes, there are {classes}"  # exact: whole numbers
        return None

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        counts = np.zeros((clients, len(sizes_C)), dtype=np.int64)
        dealt = np.split(draw.permutation(len(sizes_C)), np.cumsum(self.numbers)[:-1])
        for client, held in enumerate(dealt):
            counts[client, held] = sizes_C[held]
        return counts

    def remedy(self) -> str:
        return "lower 'min_size'"  # not 'clients': one client of a domain holds all samples of a class


@PARTITIONS.register("domain-dirichlet")
@dataclass(frozen=True)
class DomainDirichlet(Dirichlet):
    """Each domain's classes are divided among that domain's clients by Dir(beta) (``domain-dirichlet:beta``).

    The label-skew paper's PACS (appendix C.2) has three clients a domain. All domains are drawn again, up to 1,000
    times in all, until every client has ``min_size`` training samples.
    """

    source = "@zhang2024labelskew, appendix C.2"
    by_domain = True
