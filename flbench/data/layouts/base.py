"""What every layout offers, and what the layouts share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Bytes, Ints
from flbench.data.images import Encoded, Shape, common_shape, decode_batches, reading
from flbench.errors import UserError
from flbench.regular import read_text

#: Encoded images that are held in memory at once.
BATCH = 1024


@dataclass(frozen=True)
class FoundFiles:
    """The files of a layout in a folder, and those that are missing (none: it can be read)."""

    files: tuple[Path, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """What the data set expects of its files: their shape if known, or a size to resize to, and the domains' names."""

    shape: Shape | None = None
    size: int | None = None
    domains: tuple[str, ...] = ()
    #: The share of each class that is the test set, where the files have none.
    test_fraction: float | None = None

    @property
    def resize(self) -> bool:
        """Whether images of another size are resized rather than refused."""
        return self.size is not None


@dataclass(frozen=True)
class RawSplit:
    """Train or test before decoding. ``blocks`` yields (rows, images): images go to those rows, each row once."""

    labels: Ints
    shape: Shape
    blocks: Iterator[tuple[Ints, Bytes]]
    domains: Ints | None = None


@dataclass(frozen=True)
class RawData:
    """A data set before decoding; names are empty where the files do not define them."""

    train: RawSplit
    test: RawSplit
    class_names: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()


class Layout(ABC):
    """One way to arrange the files of a data set in a folder."""

    title: ClassVar[str]

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
        for path in self.find(folder).files:
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
    label = {name: number for number, name in enumerate(classes)}
    for path, name in chain(*listings):
        if name not in label:
            raise UserError(f"{path}: {name!r} is no class; known, from {source}: {', '.join(classes)}")
    images = [[Encoded(str(path), path) for path, _ in listing] for listing in listings]
    shape = expected.shape or common_shape(chain(*images), expected.size)
    return [
        RawSplit(
            np.array([label[name] for _, name in listing], dtype=np.int64),
            shape,
            _image_blocks(encoded, shape, resize=expected.resize),
        )
        for listing, encoded in zip(listings, images, strict=True)
    ]


def _image_blocks(images: list[Encoded], shape: Shape, *, resize: bool) -> Iterator[tuple[Ints, Bytes]]:
    """Yield decoded batches of images that are in the order of their rows."""
    start = 0
    batches = (images[at : at + BATCH] for at in range(0, len(images), BATCH))
    for decoded in decode_batches(batches, shape, resize=resize):
        yield np.arange(start, start + len(decoded)), decoded
        start += len(decoded)


def decoded_split(images: Bytes, labels: Ints, where: Path | str, shape: Shape | None) -> RawSplit:
    """Return an already decoded split as a single block; raises UserError if lengths differ or the shape is wrong."""
    if len(images) != len(labels):
        raise UserError(f"{where} is damaged: {len(images)} images and {len(labels)} labels")
    if shape is not None and images.shape[1:] != shape:
        raise UserError(f"{where} holds images of {images.shape[1:]}, expected {shape} (channels, height, width)")
    return RawSplit(labels, images.shape[1:], iter([(np.arange(len(labels)), images)]))


def names_in(path: Path) -> tuple[str, ...]:
    """Return the lines of a file of names, or nothing without the file."""
    if not path.is_file():
        return ()
    with reading(path):
        names = tuple(line.strip() for line in read_text(path).strip().splitlines())
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"{path}: every line must hold one name, and none twice")
    return names
