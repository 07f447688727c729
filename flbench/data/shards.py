"""Which training and test rows each client holds, and of which classes.

* The rows of each group are shuffled and dealt by the partition's counts, so every sample is used at most once. Where
  the counts are more than all of a group, its rows are dealt again in the same order.
* The test set is split in the same proportions per (client, group), disjoint, rounded by largest remainder so that no
  test sample of a dealt group is lost; a client whose share rounds to nothing has no test data.
* The server holds ``round(server_fraction * n)`` of the n training rows, which no client is dealt.
* ``floor(val_fraction * n)`` of a client's n training rows are held out for validation.

Every choice is keyed by (seed, "partition", ...), so it is the same for every method, model and norm of a seed.

Shapes: K clients, D domains, C classes, G = D * C groups of samples (G = C where domains play no part).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from flbench.data.arrays import Arrays, Data, Ints
from flbench.data.partition import Partition
from flbench.data.partition.base import Rows
from flbench.errors import UserError
from flbench.messages import counted
from flbench.streams import stream

if TYPE_CHECKING:
    from flbench.config import Federated

#: First index of the stream "partition": one number for each kind of choice.
_COUNTS, _TRAIN, _TEST, _VALIDATION, _SERVER = range(5)

_NOBODY = np.arange(0)


@dataclass(frozen=True)
class Shards:
    """The rows of each client, ascending: ``train`` and ``val`` in the training set, ``test`` in the test set.

    ``server``: the rows of the training set that the server holds.
    """

    train: tuple[Ints, ...]
    val: tuple[Ints, ...]
    test: tuple[Ints, ...]
    server: Ints = field(default_factory=lambda: _NOBODY)


def shards_of(experiment: Federated, data: Data) -> Shards:
    """Return the rows of each client of an experiment; raises as ``split``."""
    return split(
        cast(Partition, experiment.partition),
        data,
        clients=experiment.clients,
        min_size=experiment.min_size,
        val_fraction=experiment.val_fraction,
        seed=experiment.seed,
        server_fraction=experiment.server_fraction,
    )


def client_sizes(experiment: Federated, data: Data) -> Ints:
    """Return how many samples each client trains on, (K,), without dealing any; raises as ``split``."""
    server = server_rows(len(data.train.labels), experiment.server_fraction, experiment.seed)
    partition, held_out = cast(Partition, experiment.partition), experiment.val_fraction
    counts_KG, _ = _counts(partition, data, experiment.clients, experiment.min_size, held_out, experiment.seed, server)
    return _kept(counts_KG, held_out)


def server_rows(samples: int, fraction: float, seed: int) -> Ints:
    """Return the rows of a training set of this size that the server holds, ascending; a larger share has them, too.

    Raises:
        UserError: the share is less than half a sample.
    """
    count = round(samples * fraction)
    if fraction and not count:
        raise UserError(f"server_fraction: {fraction} of {counted(samples, 'training sample')} leaves the server none")
    return np.sort(stream(seed, "partition", _SERVER).permutation(samples)[:count]) if count else np.arange(0)


def split(
    partition: Partition,
    data: Data,
    *,
    clients: int,
    min_size: int,
    val_fraction: float,
    seed: int,
    server_fraction: float = 0.0,
) -> Shards:
    """Return the rows of each client.

    Raises:
        UserError: the data cannot be divided so, or a client stays below ``min_size`` training samples.
    """
    server = server_rows(len(data.train.labels), server_fraction, seed)
    counts_KG, given = _counts(partition, data, clients, min_size, val_fraction, seed, server)
    train_N, test_M = _groups(partition, data.train, data.classes, server), _groups(partition, data.test, data.classes)
    train = given.train if given else _deal_rows(train_N, counts_KG, seed, _TRAIN)
    test = given.test if given else None
    if test is None:
        train_G, test_G = (_sizes(groups, counts_KG.shape[1]) for groups in (train_N, test_M))
        train_G = np.maximum(train_G, counts_KG.sum(axis=0))  # more where samples are dealt again
        test = _deal_rows(test_M, matching_test_counts(counts_KG, train_G, test_G), seed, _TEST)
    halves = [_hold_out(rows, val_fraction, seed, client) for client, rows in enumerate(train)]
    return Shards(tuple(kept for kept, _ in halves), tuple(held for _, held in halves), test, server)


def _groups(partition: Partition, half: Arrays, classes: int, server: Ints = _NOBODY) -> Ints:
    """Return the group of each sample, (N,); -1 for those of the server."""
    groups = half.labels if half.domains is None or not partition.by_domain else half.domains * classes + half.labels
    if len(server):
        groups = groups.copy()
        groups[server] = -1
    return groups


def _sizes(groups_N: Ints, count: int) -> Ints:
    """Return the number of samples in each group, (G,)."""
    return np.bincount(groups_N[groups_N >= 0], minlength=count)


def _counts(
    partition: Partition, data: Data, clients: int, min_size: int, val_fraction: float, seed: int, server: Ints
) -> tuple[Ints, Rows | None]:
    """Return training samples per (client, group), (K, G), and the rows of each client where they are given."""
    domains = len(data.domain_names)
    if problem := partition.misfit(data.classes, clients, domains):
        raise UserError(f"{partition.label()} of {data.classes} classes among {counted(clients, 'client')}: {problem}")
    train_N = _groups(partition, data.train, data.classes, server)
    sizes = (domains if partition.by_domain else 1, data.classes)
    groups = sizes[0] * sizes[1]
    given = partition.rows(data, clients)
    if given is None:
        sizes_DC = _sizes(train_N, groups).reshape(sizes)
        if problem := partition.shortage(int(sizes_DC.sum()), clients, min_size):
            raise UserError(f"{problem}, or 'server_fraction'" if len(server) else problem)
        return _draw_counts(partition, sizes_DC, clients, min_size, val_fraction, seed), None
    if len(server):
        given = given._replace(train=tuple(rows[~np.isin(rows, server)] for rows in given.train))
    counts_KG = np.stack([np.bincount(train_N[rows], minlength=groups) for rows in given.train])
    if (smallest := int(_kept(counts_KG, val_fraction).min())) < min_size:
        raise UserError(_too_small(partition, clients, smallest, min_size, val_fraction))
    return counts_KG, given


def matching_test_counts(counts_KG: Ints, train_G: Ints, test_G: Ints) -> Ints:
    """Return test samples per (client, group) in the proportions of the training counts, (K, G).

    Of a group with T test and N training samples, a client with n of these gets n*T/N test samples, rounded by largest
    remainder; equal remainders go to the client that earlier groups have left furthest behind its share.

    >>> matching_test_counts(np.array([[6, 0], [4, 10]]), train_G=np.array([10, 10]), test_G=np.array([5, 4])).tolist()
    [[3, 0], [2, 4]]
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
    """Return training samples per (client, group), (K, G), drawn until every client has ``min_size``."""
    best = -1
    domains, classes = sizes_DC.shape
    each = clients // domains
    for attempt in range(partition.draws):
        draw = stream(seed, "partition", _COUNTS, attempt)
        counts_KDC = np.zeros((clients, domains, classes), dtype=np.int64)
        for domain, sizes_C in enumerate(sizes_DC):
            counts_KDC[domain * each : (domain + 1) * each, domain] = partition.counts(sizes_C, each, draw)
        counts_KG = counts_KDC.reshape(clients, -1)
        smallest = int(_kept(counts_KG, val_fraction).min())
        if smallest >= min_size:
            return counts_KG
        best = max(best, smallest)
    raise UserError(_too_small(partition, clients, best, min_size, val_fraction))


def _kept(counts_KG: Ints, val_fraction: float) -> Ints:
    """Return how many samples each client trains on, (K,)."""
    sizes_K: Ints = counts_KG.sum(axis=1)
    return sizes_K - _held_out(sizes_K, val_fraction)


def _held_out(sizes: Ints, val_fraction: float) -> Ints:
    """Return how many of ``sizes`` training rows are held out for validation."""
    held: Ints = np.floor(sizes * val_fraction).astype(np.int64)
    return held


def _hold_out(rows: Ints, val_fraction: float, seed: int, client: int) -> tuple[Ints, Ints]:
    """Return the rows that a client trains on, and those that are held out for validation."""
    shuffled = stream(seed, "partition", _VALIDATION, client).permutation(rows)
    cut = int(_held_out(np.array(len(rows)), val_fraction))
    return np.sort(shuffled[cut:]), np.sort(shuffled[:cut])


def _too_small(partition: Partition, clients: int, smallest: int, min_size: int, val_fraction: float) -> str:
    times = f" in {partition.draws:,} draws" if partition.draws > 1 else ""
    where = f"{partition.label()} among {counted(clients, 'client')}"
    return (
        f"{where}: the smallest client has {smallest} training samples{times}, "
        f"min_size is {min_size}; {partition.remedy()}" + (", or lower 'val_fraction'" if val_fraction else "")
    )


def _deal_rows(groups_N: Ints, counts_KG: Ints, seed: int, kind: int) -> tuple[Ints, ...]:
    """Shuffle the rows of each group and deal them by ``counts``; rows that are left over go to no client."""
    parts: list[list[Ints]] = [[] for _ in counts_KG]
    for group, counts_K in enumerate(counts_KG.T):
        rows = stream(seed, "partition", kind, group).permutation(np.flatnonzero(groups_N == group))
        if (more := int(counts_K.sum())) > len(rows):
            rows = np.resize(rows, more)  # repeats them
        for mine, part in zip(parts, np.split(rows, np.cumsum(counts_K)), strict=False):
            mine.append(part)
    return tuple(np.sort(np.concatenate(mine)) for mine in parts)


@dataclass(frozen=True)
class LabelCounts:
    """Samples per client and class; of a data set with domains, also the domains of each client's training samples."""

    class_names: tuple[str, ...]
    train_KC: Ints
    test_KC: Ints
    domains_K: tuple[tuple[str, ...], ...] = ()

    def client_names(self) -> tuple[str, ...]:
        """Return each client's number, followed by the name of its domain where it has exactly one."""
        single = [f" {names[0]}" if len(names) == 1 else "" for names in self.domains_K] or [""] * len(self.train_KC)
        return tuple(f"{client}{domain}" for client, domain in enumerate(single))


def count_labels(data: Data, shards: Shards) -> LabelCounts:
    """Count the classes of each client's training rows and test rows."""
    train, test = (
        np.stack([np.bincount(np.asarray(labels)[mine], minlength=data.classes) for mine in rows])
        for labels, rows in ((data.train.labels, shards.train), (data.test.labels, shards.test))
    )
    domains: list[tuple[str, ...]] = []
    if data.train.domains is not None:
        held = (np.unique(data.train.domains[mine]) for mine in shards.train)
        domains = [tuple(data.domain_names[number] for number in numbers) for numbers in held]
    return LabelCounts(data.class_names, train, test, tuple(domains))
