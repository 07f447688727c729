"""The training and test set of a data set, joined and split again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from flbench.data.arrays import Data, Ints
from flbench.data.layouts.base import BATCH, Block, RawData, RawSplit


def split_again(data: Data, test_fraction: float) -> RawData:
    """Return the images of both sets as two others, without holding all of them in memory.

    The split is fixed and stratified, as that of ``UnsplitFolder``: of n images of a class, training images first and
    in their order, floor(n * test_fraction) at even distances are test images.
    """
    halves = data.train, data.test
    labels_N = np.concatenate([half.labels for half in halves])
    domains_N = _joined([half.domains for half in halves])
    groups_NG = _joined([half.groups for half in halves])
    share = Fraction(str(test_fraction))
    test_N = np.zeros(len(labels_N), dtype=bool)
    for label in range(data.classes):
        (rows,) = np.nonzero(labels_N == label)
        ends = np.arange(len(rows) + 1) * share.numerator // share.denominator
        test_N[rows] = np.diff(ends) > 0

    def part(rows: Ints) -> RawSplit:
        images = data.train.images
        domains, groups = (None if each is None else each[rows] for each in (domains_N, groups_NG))
        return RawSplit(labels_N[rows], images.shape[1:], _blocks(data, rows), domains, groups, images.dtype)

    train, test = (part(np.flatnonzero(mask_N)) for mask_N in (~test_N, test_N))
    more = data.class_names, data.domain_names, data.notes, data.vocabulary, data.group_names
    return RawData(train, test, *more)


def _joined(halves: Sequence[Ints | None]) -> Ints | None:
    """The numbers of both sets; None where a set has none."""
    known = [half for half in halves if half is not None]
    return np.concatenate(known) if len(known) == len(halves) else None


def _blocks(data: Data, rows: Ints) -> Iterator[Block]:
    """Yield the images of these rows of the joined sets; rows are ascending."""
    first = len(data.train.labels)
    for at in range(0, len(rows), BATCH):
        own = rows[at : at + BATCH]
        images: Any = [data.train.images[own[own < first]], data.test.images[own[own >= first] - first]]
        yield Block(np.arange(at, at + len(own)), np.concatenate(images))
