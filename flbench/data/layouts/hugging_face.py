"""Data sets in the form of Hugging Face's ``datasets``: a folder on this machine, or a name on its hub.

The package is an extra, ``hf``, and is imported when such a set is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Ints
from flbench.data.images import Encoded, common_shape, reading
from flbench.data.layouts.base import (
    BATCH,
    Expected,
    FoundFiles,
    Layout,
    RawData,
    RawSplit,
    decoded_blocks,
    split_of_arrays,
)
from flbench.data.layouts.numbers import as_floats, as_tokens, grouped, standardized
from flbench.errors import UserError
from flbench.installation import install_extra
from flbench.messages import unknown
from flbench.parquet_files import MOST_RATIO, unpacked
from flbench.regular import open_regular


@dataclass(frozen=True)
class Parts:
    """Which parts of the set are read; None: the only one that can be."""

    name: str
    config: str | None
    train: str
    test: str
    samples: str | None
    target: str | None


@dataclass(frozen=True)
class HuggingFace(Layout):
    """A folder that ``save_to_disk`` wrote, a folder of ``.parquet`` files, or a name on the hub.

    A column of images (encoded), or of lists of one length: floats are features, whole numbers are tokens.
    """

    title: ClassVar[str] = "Hugging Face's datasets"

    parts: Parts

    def settings(self) -> dict[str, Any]:
        return {"parts": dataclasses.asdict(self.parts)}

    def find(self, folder: Path) -> FoundFiles:
        """Return the files of a folder; of a name on the hub, which ``read`` fetches, there are none."""
        if not folder.exists():
            is_path = self.parts.name.startswith(("/", ".", "~")) or self.parts.name.count("/") > 1
            return FoundFiles([], ["folder"] if is_path else [])
        files = sorted(path for pattern in ("**/*.arrow", "**/*.parquet") for path in folder.glob(pattern))
        return FoundFiles(files, [] if files else ["*.arrow (of save_to_disk) or *.parquet"])

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Read labels and lists now, and images as the blocks are iterated."""
        halves = self._halves(folder)
        samples = self._column(halves[0], "samples", self.parts.samples, _is_sample)
        target = self._column(halves[0], "target", self.parts.target, _is_label)
        labels = [_integers(half, target, folder) for half in halves]
        names = getattr(halves[0].features[target], "names", None)
        grouping = self._known(halves[0], expected.groups)
        groups = [tuple(np.array(_values(half, name)) for half in halves) for name in grouping]
        vocabulary = 0
        if type(halves[0].features[samples]).__name__ == "Image":
            splits = _images(halves, samples, labels, expected)
        else:
            arrays = [_lists(half, samples, folder, floats=expected.floats) for half in halves]
            if arrays[0].shape[1:] != arrays[1].shape[1:] or arrays[0].dtype != arrays[1].dtype:
                raise UserError(f"{folder}: {samples!r} of train and test differ in length or kind")
            arrays = list(standardized(*arrays)) if expected.standardize else arrays
            vocabulary = 1 + int(max(half.max() for half in arrays)) if arrays[0].dtype == np.int32 else 0
            splits = [split_of_arrays(*pair, folder, None) for pair in zip(arrays, labels, strict=True)]
        group_names: dict[str, tuple[str, ...]] = {}
        if groups:
            *places, values = grouped([(own, other) for own, other in groups])
            splits = [replace(split, groups=own) for split, own in zip(splits, places, strict=True)]
            group_names = dict(zip(expected.groups, values, strict=True))
        classes = tuple(names) if names else ()
        return RawData(splits[0], splits[1], classes, vocabulary=vocabulary, group_names=group_names)

    def _halves(self, folder: Path) -> list[Any]:
        with reading(folder if folder.exists() else f"{self.parts.name} of Hugging Face's hub"):
            every = _load(folder, self.parts)
        for name in (self.parts.train, self.parts.test):
            if name not in every:
                raise UserError(
                    f"{folder}: {unknown('split', name, map(str, every))}. Name the splits: {{name: hf, path: ..., "
                    "train: NAME, test: NAME}"
                )
        return [every[name] for name in (self.parts.train, self.parts.test)]

    def _known(self, half: Any, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in half.features:
                raise UserError(unknown("column", name, half.features))
        return names

    def _column(self, half: Any, what: str, given: str | None, fits: Any) -> str:
        """Return the column that is given, or the only one of this kind."""
        if given is not None:
            return self._known(half, (given,))[0]
        found = [name for name, feature in half.features.items() if fits(feature)]
        if len(found) != 1:
            known = ", ".join(half.features)
            raise UserError(
                f"several columns could be the {what}, or none: name it, {what}: COLUMN; the columns: {known}"
            )
        return str(found[0])


def _load(folder: Path, parts: Parts) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(f"the data set hf needs the package datasets; install it: {install_extra('hf')}") from None
    if not folder.exists():
        return datasets.load_dataset(parts.name, parts.config)
    if (folder / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(folder))
    files = {name: sorted(folder.glob(f"**/{name}*.parquet")) for name in (parts.train, parts.test)}
    for path in (path for own in files.values() for path in own):
        with open_regular(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            unpacked(data, MOST_RATIO * len(data))
    named = {name: datasets.Dataset.from_parquet([str(path) for path in own]) for name, own in files.items() if own}
    if not named:
        raise ValueError(f"expected dataset_dict.json (of save_to_disk), or {parts.train}*.parquet")
    return named


def _is_sample(feature: Any) -> bool:
    return type(feature).__name__ in ("Image", "List", "Sequence", "LargeList")


def _is_label(feature: Any) -> bool:
    return type(feature).__name__ == "ClassLabel"


def _values(half: Any, name: str) -> list[Any]:
    values: list[Any] = half.select_columns([name])[:][name]
    return values


def _integers(half: Any, name: str, folder: Path) -> Ints:
    values = np.array(_values(half, name))
    if values.dtype.kind not in "ui":
        raise UserError(f"{folder}: the column {name!r} must hold whole numbers, it holds {half.features[name]}")
    return values.astype(np.int64)


def _images(halves: list[Any], name: str, labels: list[Ints], expected: Expected) -> list[RawSplit]:
    from datasets import Image

    encoded = [half.select_columns([name]).cast_column(name, Image(decode=False)) for half in halves]
    shape = common_shape(
        (image for half in encoded for batch in _batches(half, name) for image in batch), expected.size
    )
    return [
        RawSplit(own, shape, decoded_blocks(_batches(half, name), np.arange(len(own)), shape, expected))
        for half, own in zip(encoded, labels, strict=True)
    ]


def _batches(half: Any, name: str) -> Iterator[list[Encoded]]:
    for start in range(0, len(half), BATCH):
        rows = half[start : start + BATCH][name]
        if any(row is None or row["bytes"] is None for row in rows):
            raise UserError(f"the column {name!r}: a row has no image bytes (paths to other files are not followed)")
        yield [Encoded(f"{name}, row {start + at}", row["bytes"]) for at, row in enumerate(rows)]


def _lists(half: Any, name: str, folder: Path, *, floats: bool) -> Any:
    """Return lists of one length as features (N, D) or tokens (N, T)."""
    rows = _values(half, name)
    lengths = sorted({len(row) if isinstance(row, list) else 0 for row in rows})
    if len(lengths) > 1:
        raise UserError(
            f"{folder}: the lists of the column {name!r} differ in length, from {lengths[0]} to {lengths[-1]}; pad "
            "them to one length"
        )
    array = np.array(rows)
    if array.ndim != 2 or array.dtype.kind not in "uif":
        raise UserError(f"{folder}: the column {name!r} must hold lists of numbers, it holds {half.features[name]}")
    where = f"{folder}, {name}"
    return as_floats(array, where) if floats or array.dtype.kind == "f" else as_tokens(array, where)
