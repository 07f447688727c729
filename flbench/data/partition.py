"""How data meets clients: which training and test rows each client holds.

A partition decides one thing, how many training samples of each class a client gets; everything else is shared:

* The rows of each class are shuffled and dealt in that order, so every sample is used at most once.
* The test set is split in the same proportions per (client, class), disjoint, rounded by largest remainder so that no
  test sample of a dealt class is lost; a client whose share rounds to nothing has no test data.
* ``floor(val_fraction * n)`` of a client's n training rows are held out for validation.

A partition with ``by_domain`` is made in each domain of the data set by itself: clients 0 ... K/D - 1 hold the first
domain, the next K/D the second, and so on. Training and test rows are then dealt per (client, domain, class).

Every choice is keyed by (seed, "partition", ...), so it is the same for every method, model and norm of a seed.

Shapes: K clients, D domains, C classes, G = D * C groups of samples (G = C where domains play no part).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import numpy as np
from pydantic import AfterValidator, Field

from flbench.data.arrays import Arrays, Data, Ints
from flbench.errors import UserError
from flbench.registry import PARTITIONS, Component
from flbench.streams import stream

if TYPE_CHECKING:
    from flbench.config import Federated

#: First index of the stream "partition": one number for each kind of choice.
_COUNTS, _TRAIN, _TEST, _VALIDATION = range(4)


@dataclass(frozen=True)
class Shards:
    """The rows of each client, ascending: ``train`` and ``val`` in the training set, ``test`` in the test set."""

    train: tuple[Ints, ...]
    val: tuple[Ints, ...]
    test: tuple[Ints, ...]


@dataclass(frozen=True)
class Partition(Component):
    """Base of the partitions."""

    #: How often ``counts`` is drawn to reach ``min_size``.
    draws: ClassVar[int] = 1
    #: Whether each domain is divided by itself, among an equal part of the clients.
    by_domain: ClassVar[bool] = False

    def misfit(self, classes: int, clients: int, domains: int) -> str | None:
        """Why it cannot be made of a set with so many classes and domains (0: it has none), or None."""
        if not self.by_domain:
            return self.problem(classes, clients)
        if not domains:
            return "the data set has no domains; use a set that has (pacs), or classes:N or dirichlet:BETA"
        if clients % domains:
            return f"{domains} domains cannot share {clients} clients equally; use a multiple of {domains} clients"
        return self.problem(classes, clients // domains)

    def problem(self, classes: int, clients: int) -> str | None:
        """Why so many classes cannot be dealt to so many clients (those of one domain where it is ``by_domain``)."""
        return None

    @abstractmethod
    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """How many training samples of each class a client gets, (K, C), given the sizes of the classes.

        Where it is ``by_domain``, it is asked once a domain, for that domain's clients.
        """

    def remedy(self) -> str:
        """What to change when a client stays too small."""
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
        """Too many classes a client, or too few for every class to have one."""
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
        """Draw who holds what, then cut each class among its holders."""
        holders_KC = _deal_classes(clients, len(sizes_C), self.n, draw)
        counts = np.zeros_like(holders_KC)
        for label, size in enumerate(sizes_C):
            holders = draw.permutation(np.flatnonzero(holders_KC[:, label]))
            if size < len(holders):
                raise UserError(
                    f"{self.label()}: class {label} has {size} training samples and cannot be cut in {len(holders)} "
                    "chunks; use fewer clients or fewer classes a client"
                )
            counts[holders, label] = _even(int(size), len(holders))
        return counts


@PARTITIONS.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is divided among the clients by a draw from Dir(beta * 1_K) (``dirichlet:beta``; Hsu et al. 2019).

    Small beta: a class lies with few clients; large beta: nearly uniform. All classes are drawn again, up to 1,000
    times in all, until every client has ``min_size`` training samples.
    """

    shorthand = "beta"
    draws = 1000

    beta: Annotated[float, Field(gt=0)]

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Proportions for each class, rounded by largest remainder so that all samples are dealt."""
        shares_CK = draw.dirichlet(np.full(clients, self.beta), size=len(sizes_C))
        return np.stack([_round(shares, int(size)) for shares, size in zip(shares_CK, sizes_C, strict=True)], axis=1)

    def remedy(self) -> str:
        """Less skew helps too."""
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
        sizes = _even(total, shards)[:, None]
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
        """Every class and every client must be dealt with exactly once."""
        if len(self.numbers) != clients:
            return f"it says what {len(self.numbers)} clients of a domain hold, a domain has {clients}"
        if sum(self.numbers) != classes:
            return f"{self.sizes} deals {sum(self.numbers)} classes, there are {classes}"
        return None

    def counts(self, sizes_C: Ints, clients: int, draw: np.random.Generator) -> Ints:
        """Cut a random order of the classes."""
        counts = np.zeros((clients, len(sizes_C)), dtype=np.int64)
        dealt = np.split(draw.permutation(len(sizes_C)), np.cumsum(self.numbers)[:-1])
        for client, held in enumerate(dealt):
            counts[client, held] = sizes_C[held]
        return counts

    def remedy(self) -> str:
        """All samples of a class lie with one client of its domain: there is nothing to spread."""
        return "lower 'min_size'"


@PARTITIONS.register("domain-dirichlet")
@dataclass(frozen=True)
class DomainDirichlet(Dirichlet):
    """Each domain's classes are divided among that domain's clients by Dir(beta) (``domain-dirichlet:beta``).

    The label-skew paper's PACS (appendix C.2) has three clients a domain. All domains are drawn again, up to 1,000
    times in all, until every client has ``min_size`` training samples.
    """

    by_domain = True


def shards_of(experiment: Federated, data: Data) -> Shards:
    """The rows of each client of an experiment: the same for every method and model of a seed; raises as ``split``."""
    return split(
        cast(Partition, experiment.partition),
        data,
        clients=experiment.clients,
        min_size=experiment.min_size,
        val_fraction=experiment.val_fraction,
        seed=experiment.seed,
    )


def split(partition: Partition, data: Data, *, clients: int, min_size: int, val_fraction: float, seed: int) -> Shards:
    """The rows of each client.

    Raises:
        UserError: the data cannot be divided so, or a client stays below ``min_size`` training samples.
    """
    domains = len(data.domain_names)
    if problem := partition.misfit(data.classes, clients, domains):
        raise UserError(f"{partition.label()} of {data.classes} classes among {clients} clients: {problem}")
    return split_labels(
        partition,
        _groups(partition, data.train, data.classes),
        _groups(partition, data.test, data.classes),
        groups=(domains if partition.by_domain else 1, data.classes),
        clients=clients,
        min_size=min_size,
        val_fraction=val_fraction,
        seed=seed,
    )


def split_labels(
    partition: Partition,
    train_N: Ints,
    test_M: Ints,
    *,
    groups: tuple[int, int],
    clients: int,
    min_size: int,
    val_fraction: float,
    seed: int,
) -> Shards:
    """The rows of each client, from the group of each training and test sample alone; see ``split``.

    ``groups`` is (D, C); the group of a sample is its domain times C plus its class.
    """
    total = groups[0] * groups[1]
    sizes_G = np.bincount(train_N, minlength=total)
    counts_KG = _draw_counts(partition, sizes_G.reshape(groups), clients, min_size, val_fraction, seed)
    tested_KG = matching_test_counts(counts_KG, sizes_G, np.bincount(test_M, minlength=total))
    rows = _deal_rows(train_N, counts_KG, seed, _TRAIN)
    train, val = zip(*(_hold_out(mine, val_fraction, seed, client) for client, mine in enumerate(rows)), strict=True)
    return Shards(train, val, tuple(_deal_rows(test_M, tested_KG, seed, _TEST)))


def _groups(partition: Partition, half: Arrays, classes: int) -> Ints:
    labels_N = np.asarray(half.labels)
    return labels_N if half.domains is None or not partition.by_domain else half.domains * classes + labels_N


def matching_test_counts(counts_KG: Ints, train_G: Ints, test_G: Ints) -> Ints:
    """Test samples per (client, group) in the proportions of the training counts, (K, G).

    Of a group with T test and N training samples, a client with n of these gets n*T/N test samples, rounded by largest
    remainder; equal remainders go to the client that earlier groups have left furthest behind its share.
    """
    out = np.zeros_like(counts_KG)
    behind_K = np.zeros(len(counts_KG))
    for group, (size, tests) in enumerate(zip(train_G, test_G, strict=True)):
        if size == 0:
            continue
        share_K, remainder_K = np.divmod(counts_KG[:, group] * tests, size)
        extra = int((remainder_K.sum() + size // 2) // size)
        first = np.lexsort((-behind_K, -remainder_K))[:extra]
        out[:, group] = share_K
        out[first, group] += 1
        behind_K += share_K + remainder_K / size - out[:, group]
    return out


def _draw_counts(
    partition: Partition, sizes_DC: Ints, clients: int, min_size: int, val_fraction: float, seed: int
) -> Ints:
    total, best = int(sizes_DC.sum()), -1
    if clients * min_size > total:
        raise UserError(
            f"{clients} clients with at least {min_size} training samples each need {clients * min_size}, "
            f"the set has {total}; lower 'clients' or 'min_size'"
        )
    for attempt in range(partition.draws):
        counts_KG = _counts(partition, sizes_DC, clients, stream(seed, "partition", _COUNTS, attempt))
        sizes_K = counts_KG.sum(axis=1)
        smallest = int((sizes_K - _held_out(sizes_K, val_fraction)).min())
        if smallest >= min_size:
            return counts_KG
        best = max(best, smallest)
    times = f" in {partition.draws:,} draws" if partition.draws > 1 else ""
    raise UserError(
        f"{partition.label()} among {clients} clients: the smallest client has {best} training samples{times}, "
        f"min_size is {min_size}; {partition.remedy()}" + (", or lower 'val_fraction'" if val_fraction else "")
    )


def _counts(partition: Partition, sizes_DC: Ints, clients: int, draw: np.random.Generator) -> Ints:
    """Training samples per (client, group), (K, G): each domain's clients hold that domain's groups."""
    domains, classes = sizes_DC.shape
    each = clients // domains
    counts_KDC = np.zeros((clients, domains, classes), dtype=np.int64)
    for domain, sizes_C in enumerate(sizes_DC):
        counts_KDC[domain * each : (domain + 1) * each, domain] = partition.counts(sizes_C, each, draw)
    return counts_KDC.reshape(clients, domains * classes)


def _deal_classes(clients: int, classes: int, n: int, draw: np.random.Generator) -> Ints:
    """Who holds which class, as (K, C) of 0 and 1, with n ones a row and K*n/C (rounded up or down) a column.

    Let each class have left at most as many chunks as there are clients left (R), and all classes together R*n. Then at
    most n classes have exactly R left; taking those first keeps both true, so no client is ever stuck.
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


def _deal_rows(groups_N: Ints, counts_KG: Ints, seed: int, kind: int) -> list[Ints]:
    """Shuffle the rows of each group and deal them by ``counts``; what is left over belongs to nobody."""
    parts: list[list[Ints]] = [[] for _ in counts_KG]
    for group, counts_K in enumerate(counts_KG.T):
        rows = stream(seed, "partition", kind, group).permutation(np.flatnonzero(groups_N == group))
        for mine, part in zip(parts, np.split(rows, np.cumsum(counts_K)), strict=False):
            mine.append(part)
    return [np.sort(np.concatenate(mine)) for mine in parts]


def _hold_out(rows: Ints, val_fraction: float, seed: int, client: int) -> tuple[Ints, Ints]:
    shuffled = stream(seed, "partition", _VALIDATION, client).permutation(rows)
    cut = int(_held_out(np.array(len(rows)), val_fraction))
    return np.sort(shuffled[cut:]), np.sort(shuffled[:cut])


def _held_out(sizes: Ints, val_fraction: float) -> Ints:
    held: Ints = np.floor(sizes * val_fraction).astype(np.int64)
    return held


def _even(total: int, parts: int) -> Ints:
    """``total`` as whole numbers that differ by at most one, the larger ones first."""
    sizes = np.full(parts, total // parts, dtype=np.int64)
    sizes[: total % parts] += 1
    return sizes


def _round(shares: np.ndarray[tuple[int], np.dtype[np.float64]], total: int) -> Ints:
    """Whole numbers near ``shares * total`` that sum to ``total``: the largest remainders are rounded up."""
    exact = shares * total
    whole: Ints = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole
