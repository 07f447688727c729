"""Check the files of a data set: checksums, counts, labels, and the decoded cache."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from flbench.data import cache
from flbench.data.arrays import fingerprint
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
    except UserError as error:
        return DatasetCheck(source, (str(error),))
    counts = (len(fresh.train.labels), len(fresh.test.labels))
    problems, notes = [], []
    if part := dataset.parts.get(fresh.fingerprint):
        notes.append(f"a part of the set: {part}")
    else:
        for half, found, expected in zip(("train", "test"), counts, dataset.counts or counts, strict=True):
            if found != expected:
                problems.append(f"expected {expected:,} {half} images, found {found:,}")
        if dataset.official not in (None, fresh.fingerprint):
            notes.append(f"not the official arrays (fingerprint {dataset.official}): other images, or another order")
    if cached := cache.read_entry(how.entry):
        actual = fingerprint(cached.train, cached.test, cached.classes)
        if not fresh.fingerprint == cached.fingerprint == actual:
            problems.append(
                f"its decoded copy {how.entry} differs from the files; delete that folder, it is made again when needed"
            )
    return DatasetCheck(source, tuple(problems), tuple(notes), fresh.fingerprint, counts)
