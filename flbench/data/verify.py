"""Check the files of a data set: checksums, counts, labels, and the decoded cache."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from flbench.data import cache
from flbench.data.arrays import Data, fingerprint
from flbench.data.datasets import Dataset, Source, locate, recipe
from flbench.errors import UserError


@dataclass(frozen=True)
class DatasetCheck:
    """The result of a check: ``problems`` are damage, ``notes`` are other findings."""

    source: Source
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str | None = None
    counts: tuple[int, int] | None = None


def verify(dataset: Dataset, root: Path | None = None) -> DatasetCheck:
    """Return the problems of a data set, from its checksums and all images decoded again, compared with the cache.

    Raises:
        DataMissing: its files are not there.
    """
    source = locate(dataset, root)
    if damage := source.layout.damage(source.folder):
        return DatasetCheck(source, tuple(damage))
    how = recipe(dataset, source)
    place = cache.cache_root() / "decoded"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix="verify-") as folder:
            fresh = cache.decode(how, Path(folder))
            problems = (*_miscounted(dataset, fresh), *_cache_damage(how, fresh))
    except UserError as error:
        return DatasetCheck(source, (str(error),))
    counts = (len(fresh.train.labels), len(fresh.test.labels))
    return DatasetCheck(source, problems, _notes(dataset, fresh), fresh.fingerprint, counts)


def _miscounted(dataset: Dataset, data: Data) -> list[str]:
    if dataset.counts is None or data.fingerprint in dataset.parts:
        return []
    return [
        f"expected {expected:,} {half} images, found {len(arrays.labels):,}"
        for half, arrays, expected in zip(("train", "test"), (data.train, data.test), dataset.counts, strict=True)
        if len(arrays.labels) != expected
    ]


def _cache_damage(how: cache.Recipe, fresh: Data) -> list[str]:
    cached = cache.peek(how)
    if cached is None or fresh.fingerprint == cached.fingerprint == fingerprint(
        cached.train, cached.test, cached.classes
    ):
        return []
    return [f"its decoded copy {how.entry} differs from the files; delete that folder, it is made again when needed"]


def _notes(dataset: Dataset, data: Data) -> tuple[str, ...]:
    if part := dataset.parts.get(data.fingerprint):
        return (f"a part of the set: {part}",)
    if dataset.official in (None, data.fingerprint):
        return ()
    return (f"not the official arrays (fingerprint {dataset.official}): other images, or another order",)
