"""What every partition offers, and how numbers of samples are rounded.

The counts are dealt as rows in ``data/shards.py``. A partition with ``by_domain`` is made in each domain of the data
set by itself: clients 0 ... K/D - 1 hold the first domain, the next K/D the second, and so on.

Shapes: K clients, D domains, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flbench.data.arrays import Data, Ints
from flbench.registry import Component

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """The rows of each client, ascending; ``test`` is None where the test set is divided as the training set is."""

    train: tuple[Ints, ...]
    test: tuple[Ints, ...] | None


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

    def is_drawn(self, classes: int | None, clients: int) -> bool:
        """Return whether seeds deal different training samples, beyond the names of clients.

        ``classes`` is None where only the data know it. ``rows`` that are given depend on no seed.
        """
        return clients > 1 and type(self).rows is Partition.rows

    def shortage(self, samples: int, clients: int, min_size: int) -> str | None:
        """Return why there are too few training samples for these clients, or None."""
        if clients * min_size <= samples:
            return None
        who = "1 client" if clients == 1 else f"{clients} clients"
        return (
            f"{who} with at least {min_size} training samples each need {clients * min_size}, "
            f"the set has {samples}; lower 'clients' or 'min_size'"
        )

    def rows(self, data: Data, clients: int) -> Rows | None:
        """Return the rows of each client where they are given; None: they are dealt by ``counts``.

        Raises:
            UserError: they do not fit the data.
        """
        return None

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Return how many training samples of each class a client gets, (K, C), given the sizes of the classes.

        With ``by_domain``, it is called once per domain, for that domain's clients. It is not called where ``rows`` are
        given.
        """
        raise NotImplementedError(f"{type(self).__name__} must define counts() or rows()")

    def remedy(self) -> str:
        """Return advice for a client that stays too small."""
        return "lower 'clients' or 'min_size'"


def cut(shares: Floats, total: int) -> Ints:
    """Return whole numbers that sum to ``total``: it is cut at the running sums of the normalized shares, rounded down.

    >>> cut(np.array([0.5, 0.25, 0.25]), 7).tolist()
    [3, 2, 2]
    """
    ends = (np.cumsum(shares / shares.sum()) * total).astype(np.int64)[:-1]
    return np.diff(np.minimum(ends, total), prepend=0, append=total)


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
