"""Partitions: how many training samples of each class each client gets, by name.

The counts are dealt as rows in ``shards.py``. A partition with ``by_domain`` is made in each domain of the data set by
itself: clients 0 ... K/D - 1 hold the first domain, the next K/D the second, and so on.

Shapes: K clients, D domains, C classes.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from flbench.data.arrays import Ints
from flbench.errors import UserError
from flbench.registry import PARTITIONS, Component


@dataclass(frozen=True)
class Partition(Component):
    """Base of the partitions."""

    #: How often ``counts`` is drawn to reach ``min_size``.
    draws: ClassVar[int] = 1
    #: Whether each domain is divided separately, among an equal share of the clients.
    by_domain: ClassVar[bool] = False

    def misfit(self, classes: int, clients: int, domains: int) -> str | None:
        """Return why it does not fit a data set with these numbers of classes and domains (0: no domains), or None."""
        if not self.by_domain:
            return self.problem(classes, clients)
        if not domains:
            return "the data set has no domains; use a set that has (pacs), or classes:N or dirichlet:BETA"
        if clients % domains:
            return f"{domains} domains cannot share {clients} clients equally; use a multiple of {domains} clients"
        return self.problem(classes, clients // domains)

    def problem(self, classes: int, clients: int) -> str | None:
        """Return why these numbers of classes and clients do not fit (with ``by_domain``: the clients of a domain)."""
        return None

    @abstractmethod
    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Return how many training samples of each class a client gets, (K, C), given the sizes of the classes.

        With ``by_domain``, it is called once per domain, for that domain's clients.
        """

    def remedy(self) -> str:
        """Return advice for a client that stays too small."""
        return "lower 'clients' or 'min_size'"


@PARTITIONS.register("iid")
@dataclass(frozen=True)
class Iid(Partition):
    """All samples in random order, cut in K pieces of equal size (or one more)."""

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Count the classes in each piece of a random order."""
        labels = draw.permutation(np.repeat(np.arange(len(sizes_C)), sizes_C))
        return np.stack([np.bincount(piece, minlength=len(sizes_C)) for piece in np.array_split(labels, clients)])


@PARTITIONS.register("classes")
@dataclass(frozen=True)
class Classes(Partition):
    """Every client holds exactly n distinct classes (``classes:n``).

    Each class is cut in s = K*n // C chunks, and each client takes one chunk of n different classes. The difference to
    the label-skew paper's code, where the draw can fail: clients choose at random among the classes that have chunks
    left, in a random order, but must take a class that has as many chunks left as there are clients left; so the draw
    always succeeds. Where K*n is no multiple of C, K*n mod C randomly chosen classes are cut in s + 1 chunks. Chunks of
    a class differ by at most one sample, none is dropped. K*n < C is refused: classes without a client would be tested
    but never trained.
    """

    shorthand = "n"

    n: Annotated[int, Field(ge=1)]

    def problem(self, classes: int, clients: int) -> str | None:
        """Return why, if clients would hold too many classes, or a class would have no client."""
        if self.n > classes:
            return f"a client cannot hold {self.n} classes, there are {classes}; use at most classes:{classes}"
        if clients * self.n < classes:
            least = -(-classes // clients)
            return (
                f"{clients * self.n} places cannot hold {classes} classes; use at least classes:{least}, "
                f"or at least {-(-classes // self.n)} clients"
            )
        return None

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Draw which client holds which class, then divide each class among its holders."""
        holders_KC = _deal_classes(clients, len(sizes_C), self.n, draw)
        counts = np.zeros_like(holders_KC)
        for label, size in enumerate(sizes_C):
            holders = draw.permutation(np.flatnonzero(holders_KC[:, label]))
            if size < len(holders):
                raise UserError(
                    f"{self.label()}: class {label} has {size} training samples and cannot be cut in {len(holders)} "
                    "chunks; use fewer clients or fewer classes a client"
                )
            counts[holders, label] = deal_evenly(int(size), len(holders))
        return counts


@PARTITIONS.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is divided among the clients by a draw from Dir(beta * 1_K) (``dirichlet:beta``; Hsu et al. 2019).

    Small beta: few clients hold a class; large beta: nearly uniform. All classes are drawn again, up to 1,000 times in
    all, until every client has ``min_size`` training samples.
    """

    shorthand = "beta"
    draws = 1000

    beta: Annotated[float, Field(gt=0)]

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Return proportions for each class, rounded by largest remainder so that all samples are dealt."""
        shares_CK = draw.dirichlet(np.full(clients, self.beta), size=len(sizes_C))
        return np.stack(
            [round_shares(shares, int(size)) for shares, size in zip(shares_CK, sizes_C, strict=True)], axis=1
        )

    def remedy(self) -> str:
        """Also suggest a larger ``beta``."""
        return "raise 'beta', or lower 'clients' or 'min_size'"


@PARTITIONS.register("shards")
@dataclass(frozen=True)
class LabelShards(Partition):
    """Sort by label, cut in K*n shards of equal size (or one more), deal each client n (McMahan et al. 2017)."""

    shorthand = "n"

    n: Annotated[int, Field(ge=1)]

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Count the classes in each shard and deal the shards at random."""
        total, shards = int(sizes_C.sum()), clients * self.n
        if shards > total:
            raise UserError(
                f"{self.label()}: {total} training samples cannot be cut in {shards} shards; "
                "use fewer clients or fewer shards a client"
            )
        sizes = deal_evenly(total, shards)[:, None]
        # Shards and classes are intervals of the sorted samples; each shard's classes are the overlaps.
        shard_ends, class_ends = np.cumsum(sizes)[:, None], np.cumsum(sizes_C)
        overlap = np.minimum(shard_ends, class_ends) - np.maximum(shard_ends - sizes, class_ends - sizes_C)
        dealt = draw.permutation(np.maximum(overlap, 0))
        counts: Ints = dealt.reshape(clients, self.n, len(sizes_C)).sum(axis=1)
        return counts


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
    anew for each domain.
    """

    shorthand = "sizes"
    by_domain = True

    sizes: Annotated[str, AfterValidator(_class_numbers)]

    @property
    def numbers(self) -> list[int]:
        """How many classes each client of a domain holds."""
        return [int(number) for number in self.sizes.split("-")]

    def problem(self, classes: int, clients: int) -> str | None:
        """Return why these classes and clients do not fit ``sizes``."""
        if len(self.numbers) != clients:
            return f"it has sizes for {len(self.numbers)} clients of a domain, a domain has {clients}"
        if sum(self.numbers) != classes:
            return f"{self.sizes} deals {sum(self.numbers)} classes, there are {classes}"
        return None

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Deal the classes in a random order."""
        counts = np.zeros((clients, len(sizes_C)), dtype=np.int64)
        dealt = np.split(draw.permutation(len(sizes_C)), np.cumsum(self.numbers)[:-1])
        for client, held in enumerate(dealt):
            counts[client, held] = sizes_C[held]
        return counts

    def remedy(self) -> str:
        """Suggest a smaller ``min_size`` alone: one client of a domain holds all samples of a class."""
        return "lower 'min_size'"


@PARTITIONS.register("domain-dirichlet")
@dataclass(frozen=True)
class DomainDirichlet(Dirichlet):
    """Each domain's classes are divided among that domain's clients by Dir(beta) (``domain-dirichlet:beta``).

    The label-skew paper's PACS (appendix C.2) has three clients a domain. All domains are drawn again, up to 1,000
    times in all, until every client has ``min_size`` training samples.
    """

    by_domain = True


def _deal_classes(clients: int, classes: int, n: int, draw: np.random.Generator) -> Ints:
    """Return which client holds which class, as (K, C) of 0 and 1: n ones per row, K*n/C (up or down) per column.

    Invariant, with R clients left: each class has at most R chunks left, and all classes together R*n. Then at most n
    classes have exactly R left; taking those first keeps the invariant, so every client gets n different classes.
    """
    left_C = np.full(classes, clients * n // classes)
    left_C[draw.permutation(classes)[: clients * n % classes]] += 1
    holds_KC = np.zeros((clients, classes), dtype=np.int64)
    for done, client in enumerate(draw.permutation(clients)):
        order = draw.permutation(np.flatnonzero(left_C))
        must_first = np.argsort(left_C[order] < clients - done, kind="stable")
        taken = order[must_first][:n]
        holds_KC[client, taken] = 1
        left_C[taken] -= 1
    return holds_KC


def deal_evenly(total: int, parts: int) -> Ints:
    """Return ``total`` as whole numbers that differ by at most one, the larger ones first.

    >>> deal_evenly(10, 3).tolist()
    [4, 3, 3]
    """
    sizes = np.full(parts, total // parts, dtype=np.int64)
    sizes[: total % parts] += 1
    return sizes


def round_shares(shares: np.ndarray[tuple[int], np.dtype[np.float64]], total: int) -> Ints:
    """Return whole numbers near ``shares * total`` that sum to ``total``: the largest remainders are rounded up.

    >>> round_shares(np.array([0.5, 0.25, 0.25]), 7).tolist()
    [3, 2, 2]
    """
    exact = shares * total
    whole: Ints = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole
