"""Partitions of the whole data set by counts of classes.

Shapes: K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from flbench.data.arrays import Ints
from flbench.data.partition.base import Floats, Partition, cut, deal_evenly, round_shares
from flbench.errors import UserError
from flbench.registry import PARTITIONS

#: ``niid-bench``: as the authors of NIID-Bench deal (Li et al. 2022, github.com/Xtra-Computing/NIID-Bench).
Variant = Literal["plain", "niid-bench"]


@PARTITIONS.register("iid")
@dataclass(frozen=True)
class Iid(Partition):
    """All samples in random order, cut in K pieces of equal size (or one more)."""

    source: ClassVar[str] = ""

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
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

    ``variant: niid-bench``: client i holds class i mod C and n - 1 others at random, so that the number of chunks of a
    class, and with it the sizes of clients, vary (with n = 1 they do not).
    """

    source = "@zhang2024labelskew; variant niid-bench: @li2022niidbench"
    shorthand = "n"

    n: Annotated[int, Field(ge=1)]
    variant: Variant = "plain"

    def problem(self, classes: int, clients: int) -> str | None:
        if self.n > classes:
            return f"a client cannot hold {self.n} classes, there are {classes}; use at most classes:{classes}"
        if self.variant == "niid-bench" and clients < classes:
            return f"variant niid-bench may leave a class to no client below {classes} clients; use variant plain"
        if clients * self.n < classes:
            least = -(-classes // clients)
            return (
                f"{clients * self.n} places cannot hold {classes} classes; use at least classes:{least}, "
                f"or at least {-(-classes // self.n)} clients"
            )
        return None

    def is_drawn(self, classes: int | None, clients: int) -> bool:
        """Return False where each client holds one class and each class has one client."""
        return super().is_drawn(classes, clients) and not (self.n == 1 and clients == classes)

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        plain = self.variant == "plain"
        holders_KC = (_deal_classes if plain else _choose_classes)(clients, len(sizes_C), self.n, draw)
        counts = np.zeros_like(holders_KC)
        for label, size in enumerate(sizes_C):
            holders = np.flatnonzero(holders_KC[:, label])
            if plain:
                holders = draw.permutation(holders)
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

    ``variant: niid-bench``: class by class, the clients that have N/K samples already get none, the shares of the
    others are normalized, and the running sums are rounded down. NIID-Bench has ``min_size: 10``. flwr-datasets calls
    this ``self_balancing``, FedLab ``hetero_dir``. Sizes are equal with ``balanced-dirichlet``.
    """

    source = "@hsu2019fedavgm; variant niid-bench: @li2022niidbench"
    shorthand = "beta"
    draws = 1000

    beta: Annotated[float, Field(gt=0)]
    variant: Variant = "plain"

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        if self.variant == "niid-bench":
            return self._balanced_counts(sizes_C, clients, draw)
        shares_CK = draw.dirichlet(np.full(clients, self.beta), size=len(sizes_C))
        return np.stack(
            [round_shares(shares, int(size)) for shares, size in zip(shares_CK, sizes_C, strict=True)], axis=1
        )

    def _balanced_counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Deal as NIID-Bench does; where a tiny beta leaves all shares 0 (the authors divide by 0), they are equal."""
        counts = np.zeros((clients, len(sizes_C)), dtype=np.int64)
        for label, size in enumerate(sizes_C):
            shares_K = draw.dirichlet(np.full(clients, self.beta))
            if size:
                open_K = counts.sum(axis=1) < sizes_C.sum() / clients
                left_K = shares_K * open_K
                counts[:, label] = cut(left_K if left_K.any() else open_K.astype(np.float64), int(size))
        return counts

    def remedy(self) -> str:
        return "raise 'beta', or lower 'clients' or 'min_size'"


@PARTITIONS.register("balanced-dirichlet")
@dataclass(frozen=True)
class BalancedDirichlet(Partition):
    """Clients of equal size (or one more), each with class proportions from Dir(beta * 1_C) (Acar et al. 2021, FedDyn).

    ``balanced-dirichlet:beta``. A client that is not full yet is chosen at random and takes a sample of a class drawn
    from its proportions, among the classes that have samples left, until all samples are dealt. So the last clients to
    fill up deviate from their proportions. This is the rule of FedDyn's code and of FedLab's
    ``client_inner_dirichlet_partition``, which drop N mod K samples and draw classes again until one has samples left.

    ``variant: fl-simulator``: a class that is used up is refilled, as in the code of FL-Simulator, so that all clients
    keep to their proportions. A sample may then belong to several clients, or twice to one, and others to none; with
    ``val_fraction`` one client may hold out what another trains on. The test set is divided without repetition.
    """

    source = "@acar2021feddyn, and its code; variant fl-simulator: the code of woodenchild95/FL-Simulator"
    shorthand = "beta"

    beta: Annotated[float, Field(gt=0)]
    variant: Literal["plain", "fl-simulator"] = "plain"

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Deal one sample at a time; classes left with probability 0 are drawn by the samples that they have."""
        shares_KC = draw.dirichlet(np.full(len(sizes_C), self.beta), size=clients)
        if self.variant == "fl-simulator":
            sizes_K = deal_evenly(int(sizes_C.sum()), clients)
            weights_KC = shares_KC * (sizes_C > 0)
            weights_KC[weights_KC.sum(1) == 0] = sizes_C  # a tiny beta leaves a client no class that exists
            return draw.multinomial(sizes_K, weights_KC / weights_KC.sum(1, keepdims=True))
        left_C = sizes_C.copy()
        ends_KC = _open_ends(shares_KC, left_C)
        counts = np.zeros_like(shares_KC, dtype=np.int64)
        for client in _turns(deal_evenly(int(sizes_C.sum()), clients), draw):
            label = int(np.searchsorted(ends_KC[client], draw.random(), side="right"))
            counts[client, label] += 1
            left_C[label] -= 1
            if left_C[label] == 0:
                ends_KC = _open_ends(shares_KC, left_C)
        return counts


@PARTITIONS.register("quantity")
@dataclass(frozen=True)
class Quantity(Partition):
    """Quantity skew: labels as in ``iid``, sizes of clients from Dir(beta * 1_K) (``quantity:beta``; NIID-Bench).

    All samples in random order are cut at the running sums of the shares, rounded down. Drawn again, up to 1,000 times
    in all, until every client has ``min_size`` training samples (NIID-Bench: 10).
    """

    source = "@li2022niidbench"
    shorthand = "beta"
    draws = 1000

    beta: Annotated[float, Field(gt=0)]

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        labels = draw.permutation(np.repeat(np.arange(len(sizes_C)), sizes_C))
        sizes_K = cut(draw.dirichlet(np.full(clients, self.beta)), len(labels))
        pieces = np.split(labels, np.cumsum(sizes_K)[:-1])
        return np.stack([np.bincount(piece, minlength=len(sizes_C)) for piece in pieces])

    def remedy(self) -> str:
        return "raise 'beta', or lower 'clients' or 'min_size'"


@PARTITIONS.register("shards")
@dataclass(frozen=True)
class LabelShards(Partition):
    """Sort by label, cut in K*n shards of equal size (or one more), deal each client n (McMahan et al. 2017)."""

    source = "@mcmahan2017fedavg, section 3"
    shorthand = "n"

    n: Annotated[int, Field(ge=1)]

    def shortage(self, samples: int, clients: int, min_size: int) -> str | None:
        if problem := super().shortage(samples, clients, min_size):
            return problem
        if clients * self.n <= samples:
            return None
        return (
            f"{self.label()}: {samples} training samples cannot be cut in {clients * self.n} shards; "
            "use fewer clients or fewer shards a client"
        )

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        sizes = deal_evenly(int(sizes_C.sum()), clients * self.n)[:, None]
        # Shards and classes are intervals of the sorted samples; each shard's classes are the overlaps.
        shard_ends, class_ends = np.cumsum(sizes)[:, None], np.cumsum(sizes_C)
        overlap = np.minimum(shard_ends, class_ends) - np.maximum(shard_ends - sizes, class_ends - sizes_C)
        dealt = draw.permutation(np.maximum(overlap, 0))
        counts: Ints = dealt.reshape(clients, self.n, len(sizes_C)).sum(axis=1)
        return counts


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


def _choose_classes(clients: int, classes: int, n: int, draw: np.random.Generator) -> Ints:
    """Return which client holds which class, as (K, C) of 0 and 1: NIID-Bench's choice."""
    holds_KC = np.zeros((clients, classes), dtype=np.int64)
    for client in range(clients):
        holds_KC[client, client % classes] = 1
        while holds_KC[client].sum() < n:
            holds_KC[client, draw.integers(classes)] = 1
    return holds_KC


def _turns(sizes_K: Ints, draw: np.random.Generator) -> Iterator[int]:
    """Yield each client as often as its size says, at every turn uniformly among the clients that are not full."""
    left_K = sizes_K.copy()
    while open_clients := np.flatnonzero(left_K).tolist():
        for client in draw.choice(open_clients, size=1024).tolist():
            if left_K[client]:
                left_K[client] -= 1
                yield client


def _open_ends(shares_KC: Floats, left_C: Ints) -> Floats:
    """Return the running sums of each client's shares of the classes that have samples left; the last sums are 1."""
    tiny = np.finfo(np.float64).tiny
    open_KC = shares_KC * (left_C > 0)
    open_KC[open_KC.sum(axis=1) < tiny] = left_C
    ends_KC: Floats = np.cumsum(open_KC, axis=1)
    return ends_KC / np.maximum(ends_KC[:, -1:], tiny)
