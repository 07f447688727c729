"""What every layout offers, and what the layouts share."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flbench.data.arrays import Ints, Samples
from flbench.data.images import Encoded, Oddity, Shape, common_shape, decode_batches, reading
from flbench.errors import UserError, check_utf8
from flbench.regular import read_text

#: Encoded images that are held in memory at once.
BATCH = 1024


class FoundFiles(NamedTuple):
    """The files of a layout in a folder, and those that are missing (none: it can be read)."""

    files: Sequence[Path]
    lacking: Sequence[str]


@dataclass(frozen=True)
class Expected:
    """What the data set expects of its files: their shape if known, or a size to resize to, and the domains' names."""

    shape: Shape | None = None
    size: int | None = None
    domains: tuple[str, ...] = ()
    #: The share of each class that is the test set; None: the files have one.
    test_fraction: float | None = None
    #: Whether the classes that have images get labels from 0 on, without gaps.
    renumber: bool = False
    #: Whether numbers are read as float32, and neither rounded to bytes nor taken for tokens.
    floats: bool = False
    #: Whether floats are standardized by the mean and the standard deviation of the training set.
    standardize: bool = False
    #: Columns, or arrays, that group the samples.
    groups: tuple[str, ...] = ()


class Block(NamedTuple):
    """Decoded samples, (n, ...), the rows that they belong to, (n,), and what is odd about their files."""

    rows: Ints
    images: Samples
    oddities: tuple[Oddity, ...] = ()


@dataclass(frozen=True)
class RawSplit:
    """Train or test before decoding. ``blocks`` yields the images of each row once."""

    labels: Ints
    shape: tuple[int, ...]
    blocks: Iterator[Block]
    domains: Ints | None = None
    groups: Ints | None = None
    dtype: np.dtype[Any] | type[np.uint8] = np.uint8


@dataclass(frozen=True)
class RawData:
    """A data set before decoding; names are empty where the files do not define them."""

    train: RawSplit
    test: RawSplit
    class_names: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()
    #: What users should know about how the files are read.
    notes: tuple[str, ...] = ()
    vocabulary: int = 0
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def renumbered(self) -> RawData:
        """Return the data with labels counted from 0 over the classes that have images, in the order of their labels.

        Classes keep their names; those without one are named by their old label. Labels that are no class stay.
        """
        used = np.union1d(self.train.labels, self.test.labels)
        if used[0] < 0 or (self.class_names and used[-1] >= len(self.class_names)):
            return self
        train, test = (replace(half, labels=np.searchsorted(used, half.labels)) for half in (self.train, self.test))
        names = tuple(self.class_names[label] if self.class_names else str(label) for label in used.tolist())
        return replace(self, train=train, test=test, class_names=names)


class Layout(ABC):
    """One way to arrange the files of a data set in a folder."""

    title: ClassVar[str]
    #: Raise when the reading changes, so that older entries of the decoded cache are not found any more.
    version: ClassVar[int] = 1
    #: Files that are read where they exist, such as one of names.
    optional: ClassVar[tuple[str, ...]] = ()
    #: Whether the files have no test set, and ``read`` takes ``test_fraction`` of the images for one.
    splits: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        """Return what else defines how the files are read, as JSON; it enters the key of the decoded cache."""
        return {}

    @abstractmethod
    def find(self, folder: Path) -> FoundFiles:
        """Find the files, without opening any."""

    @abstractmethod
    def read(self, folder: Path, expected: Expected) -> RawData:
        """Read labels and names now, and images as the blocks are iterated; raises UserError on damaged files."""

    def counts(self, folder: Path) -> tuple[int, int] | None:
        """Return the number of images in train and test, without decoding; None where checksums fix the files."""
        return None

    def damage(self, folder: Path) -> list[str]:
        """Return one line per file whose published checksum does not match; no lines where none is published."""
        return []

    def signature(self, folder: Path) -> list[list[Any]]:
        """Return name, size and modification time of every file: when they change, the decoded cache is stale."""
        signature: list[list[Any]] = []
        optional = (path for name in self.optional if (path := folder / name).is_file())
        for path in (*self.find(folder).files, *optional):
            check_utf8(str(path))
            with reading(path):
                stat = path.stat()
            name = path.relative_to(folder) if path.is_relative_to(folder) else path
            signature.append([str(name), stat.st_size, stat.st_mtime_ns])
        return signature


def splits_of_files(
    listings: Sequence[Sequence[tuple[Path, str]]], classes: Sequence[str], source: str, expected: Expected
) -> list[RawSplit]:
    """Return one split a listing of image files with their classes; ``source`` says where the classes are named.

    Raises:
        UserError: an image belongs to no class, or its shape is wrong.
    """
    label = numbered(classes, source)
    for path, name in chain(*listings):
        if one_form(name) not in label:
            raise UserError(f"{path}: {name!r} is no class; known, from {source}: {', '.join(classes)}")
    images = [[Encoded(str(path), path) for path, _ in listing] for listing in listings]
    shape = expected.shape or common_shape(chain(*images), expected.size)
    splits = []
    for listing, encoded in zip(listings, images, strict=True):
        labels = np.array([label[one_form(name)] for _, name in listing], dtype=np.int64)
        batches = [encoded[at : at + BATCH] for at in range(0, len(encoded), BATCH)]
        splits.append(RawSplit(labels, shape, decoded_blocks(batches, np.arange(len(labels)), shape, expected)))
    return splits


def decoded_blocks(batches: Iterable[list[Encoded]], rows: Ints, shape: Shape, expected: Expected) -> Iterator[Block]:
    """Yield each batch of images decoded; ``rows`` has the row of each image, in their order."""
    start = 0
    for images, oddities in decode_batches(batches, shape, resize=expected.size is not None):
        yield Block(rows[start : start + len(images)], images, oddities)
        start += len(images)


def split_of_arrays(images: Samples, labels: Ints, where: Path | str, shape: Shape | None) -> RawSplit:
    """Return an already decoded split as a single block; raises UserError if lengths differ or the shape is wrong."""
    if len(images) != len(labels):
        raise UserError(f"{where} is damaged: {len(images)} images and {len(labels)} labels")
    if shape is not None and images.shape[1:] != shape:
        raise UserError(f"{where} holds images of {images.shape[1:]}, expected {shape} (channels, height, width)")
    blocks = iter([Block(np.arange(len(labels)), images)])
    return RawSplit(labels, images.shape[1:], blocks, dtype=images.dtype)


def one_form(name: str) -> str:
    """Return the form in which names are compared: systems write the letter é in one character or in two (NFC, NFD)."""
    return unicodedata.normalize("NFC", name)


def numbered(names: Sequence[str], source: str) -> dict[str, int]:
    """Return the number of each name, in ``one_form``; raises UserError if two names differ in their form alone."""
    numbers = {one_form(name): number for number, name in enumerate(names)}
    if len(numbers) < len(names):
        again = next(name for number, name in enumerate(names) if numbers[one_form(name)] != number)
        raise UserError(f"{source}: the name {again} is there twice, in two forms of Unicode (NFC, NFD); rename one")
    return numbers


def names_in(path: Path) -> tuple[str, ...]:
    """Return the lines of a file of names, or nothing without the file."""
    if not path.is_file():
        return ()
    with reading(path):
        names = tuple(line.strip() for line in read_text(path).strip().splitlines())
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"{path}: every line must hold one name, and none twice")
    return names
