"""How a data set may lie on disk: what every layout offers, parquet shards, and image folders.

The layouts that torchvision writes are in ``official.py``.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Bytes, Ints
from flbench.data.images import SUFFIXES, Encoded, Shape, common_shape, decode_batches, reading
from flbench.errors import UserError
from flbench.regular import open_regular, read_text

#: Encoded images that are held in memory at once.
_BATCH = 1024


@dataclass(frozen=True)
class Found:
    """What a layout saw in a folder: its files, and what is lacking (nothing lacking: it can be read)."""

    files: tuple[Path, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """What the data set expects: its images' shape if known, or a size to bring them to, and its domains' names."""

    shape: Shape | None = None
    size: int | None = None
    domains: tuple[str, ...] = ()

    @property
    def resize(self) -> bool:
        """Whether images of another size are resized rather than refused."""
        return self.size is not None


@dataclass(frozen=True)
class Half:
    """Train or test before decoding. ``blocks`` yields (rows, images): images go to those rows, each row once."""

    labels: Ints
    shape: Shape
    blocks: Iterator[tuple[Ints, Bytes]]
    domains: Ints | None = None


@dataclass(frozen=True)
class Contents:
    """A data set before decoding; names are empty where the files do not tell them."""

    train: Half
    test: Half
    class_names: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()


class Layout(ABC):
    """One way in which a data set lies in a folder."""

    title: ClassVar[str]

    @abstractmethod
    def find(self, folder: Path) -> Found:
        """Look for the files; nothing is opened."""

    @abstractmethod
    def read(self, folder: Path, wanted: Wanted) -> Contents:
        """Read labels and names now, and images as the blocks are drawn; raises UserError on damaged files."""

    def counts(self, folder: Path) -> tuple[int, int] | None:
        """Images in train and test, without decoding any; None where the files are the published ones or refused."""
        return None

    def damage(self, folder: Path) -> list[str]:
        """What published checksums say is wrong, one line a file; empty where all is well or none are published."""
        return []

    def signature(self, folder: Path) -> list[list[Any]]:
        """Name, size in bytes and modification time of every file: when it changes, the decoded cache is stale."""
        signature: list[list[Any]] = []
        for path in self.find(folder).files:
            with reading(path):
                stat = path.stat()
            signature.append([_name(path, folder), stat.st_size, stat.st_mtime_ns])
        return signature


@dataclass(frozen=True)
class Parquet(Layout):
    """Parquet shards in the style of Hugging Face: ``train-*.parquet`` and ``test-*.parquet``, also under ``data/``.

    Columns: ``image`` (or ``img``) as encoded bytes or as a struct with ``bytes``; ``label`` as integers; optional
    ``domain`` (strings), and ``index`` (the row in the official order, by which rows are then sorted). ``classes.txt``
    and ``domains.txt`` name label and domain n in line n.

    ``label`` and ``test`` list other names that a set's column of labels and its test shards go by, the first found is
    read.
    """

    title: ClassVar[str] = "parquet shards"

    label: tuple[str, ...] = ("label",)
    test: tuple[str, ...] = ("test",)

    def find(self, folder: Path) -> Found:
        """All shards and the files of names."""
        lacking, files = [], []
        for prefixes in (("train",), self.test):
            shards = _shards(folder, prefixes)
            files += shards
            lacking += _lacking_shards(shards) if shards else [f"{prefixes[0]}-*.parquet"]
        names = [folder / name for name in ("classes.txt", "domains.txt")] if files else []
        return Found((*files, *(path for path in names if path.is_file())), tuple(lacking))

    def counts(self, folder: Path) -> tuple[int, int]:
        """The rows that the shards' footers name."""
        train, test = (sum(map(_rows, _shards(folder, prefixes))) for prefixes in (("train",), self.test))
        return train, test

    def read(self, folder: Path, wanted: Wanted) -> Contents:
        """Labels of every shard now, images in batches later."""
        train, test = (_Table(_shards(folder, prefixes), self.label) for prefixes in (("train",), self.test))
        named = wanted.domains or _lines(folder / "domains.txt")
        domain_names = named or _distinct(train.domains, test.domains)
        shape = wanted.shape or common_shape(_both(train, test), wanted.size)
        halves = [
            Half(
                labels=table.labels[table.order],
                shape=shape,
                blocks=table.blocks(shape, resize=wanted.resize),
                domains=table.domain_numbers(domain_names),
            )
            for table in (train, test)
        ]
        return Contents(halves[0], halves[1], _lines(folder / "classes.txt") or train.class_names(), domain_names)


class ImageFolder(Layout):
    """Images in ``train/<class>/`` and ``test/<class>/``, at any depth below.

    Labels follow ``classes.txt`` (line n is the folder of label n) or, without it, the sorted names of the folders in
    ``train`` (by number if all are numbers).
    """

    title: ClassVar[str] = "image folder"

    def find(self, folder: Path) -> Found:
        """Every image, and the file of names."""
        found = {half: _images_below(folder / half) for half in ("train", "test")}
        lacking = tuple(f"{half}/<class>/<image>" for half, files in found.items() if not files)
        files = [*found["train"], *found["test"]]
        names = folder / "classes.txt"
        return Found((*files, names) if files and names.is_file() else tuple(files), lacking)

    def counts(self, folder: Path) -> tuple[int, int]:
        """The files below train and test."""
        return len(_images_below(folder / "train")), len(_images_below(folder / "test"))

    def read(self, folder: Path, wanted: Wanted) -> Contents:
        """The tree now, pixels in batches later."""
        files = {half: _images_below(folder / half) for half in ("train", "test")}
        names = _lines(folder / "classes.txt") or _sorted_names({_class_of(p, folder) for p in files["train"]})
        images = {half: [Encoded(str(path), path) for path in paths] for half, paths in files.items()}
        shape = wanted.shape or common_shape([*images["train"], *images["test"]], wanted.size)
        halves = [
            Half(
                labels=_folder_labels(files[half], folder, names),
                shape=shape,
                blocks=image_blocks(images[half], shape, resize=wanted.resize),
            )
            for half in ("train", "test")
        ]
        return Contents(halves[0], halves[1], names)


def image_blocks(images: list[Encoded], shape: Shape, *, resize: bool) -> Iterator[tuple[Ints, Bytes]]:
    """Decoded batches of images that lie in the order of their rows."""
    start = 0
    batches = (images[at : at + _BATCH] for at in range(0, len(images), _BATCH))
    for decoded in decode_batches(batches, shape, resize=resize):
        yield np.arange(start, start + len(decoded)), decoded
        start += len(decoded)


class _Table:
    """The rows of one half's parquet shards."""

    def __init__(self, shards: list[Path], label: tuple[str, ...]) -> None:
        self.files = []
        for shard in shards:
            with reading(shard):
                self.files.append((shard, _parquet(shard)))
        self.image = self._image_column()
        self.label = next(filter(self._has, label), label[0])
        self.labels = self._integers(self.label)
        index = self._integers("index") if self._has("index") else np.arange(len(self.labels))
        self.order: Ints = np.argsort(index, kind="stable").astype(np.int64)
        if (repeated := index[self.order][1:] == index[self.order][:-1]).any():
            first = index[self.order][:-1][repeated][0]
            raise UserError(f"{shards[0].parent}: the column 'index' holds {first} more than once")
        self.domains = self._column("domain") if self._has("domain") else None

    def domain_numbers(self, names: tuple[str, ...]) -> Ints | None:
        """Each row's domain as its place in ``names``, rows in order; None where the set has no domains."""
        if not names:
            return None
        if self.domains is None:
            raise UserError(f"{self.files[0][0]} has no column 'domain'; the set has domains: {', '.join(names)}")
        place = {name: number for number, name in enumerate(names)}
        if unknown := sorted({str(name) for name in self.domains} - set(place)):
            raise UserError(
                f"{self.files[0][0].parent}: domain {unknown[0]!r} is not among its domains ({', '.join(names)})"
            )
        numbers = np.array([place[str(name)] for name in self.domains], dtype=np.int64)
        return numbers[self.order]

    def images(self) -> Iterator[list[Encoded]]:
        """Encoded images in the order of the files, in batches."""
        for path, file in self.files:
            row = 0
            with reading(path):
                for batch in file.iter_batches(_BATCH, columns=[self.image]):
                    encoded = _encoded_bytes(batch.column(0))
                    yield [Encoded(f"{path}, row {row + at}", value) for at, value in enumerate(encoded)]
                    row += len(encoded)

    def blocks(self, shape: Shape, *, resize: bool) -> Iterator[tuple[Ints, Bytes]]:
        """Decoded batches with the rows that they belong to."""
        rows = np.empty_like(self.order)
        rows[self.order] = np.arange(len(rows))
        start = 0
        for images in decode_batches(self.images(), shape, resize=resize):
            yield rows[start : start + len(images)], images
            start += len(images)

    def class_names(self) -> tuple[str, ...]:
        """The names that Hugging Face keeps in the schema's metadata, if any."""
        raw = (self.files[0][1].schema_arrow.metadata or {}).get(b"huggingface")
        try:
            return tuple(map(str, json.loads(raw)["info"]["features"][self.label]["names"])) if raw else ()
        except (ValueError, KeyError, TypeError):
            return ()

    def _has(self, column: str) -> bool:
        return all(column in file.schema_arrow.names for _, file in self.files)

    def _image_column(self) -> str:
        for column in ("image", "img"):
            if self._has(column):
                return column
        path, file = self.files[0]
        raise UserError(f"{path} has no column 'image'; its columns: {', '.join(file.schema_arrow.names)}")

    def _column(self, name: str) -> list[Any]:
        values = []
        for path, file in self.files:
            if name not in file.schema_arrow.names:
                raise UserError(f"{path} has no column {name!r}; its columns: {', '.join(file.schema_arrow.names)}")
            with reading(path):
                values += file.read(columns=[name]).column(0).to_pylist()
        return values

    def _integers(self, name: str) -> Ints:
        values = self._column(name)
        if not all(type(value) is int for value in values):
            odd = next(value for value in values if type(value) is not int)
            raise UserError(f"{self.files[0][0].parent}: the column {name!r} must hold integers, got {odd!r}")
        return np.array(values, dtype=np.int64)


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    with open_regular(path):  # a FIFO would be waited for
        return pq.ParquetFile(path)


def _rows(shard: Path) -> int:
    with reading(shard):
        rows: int = _parquet(shard).metadata.num_rows
    return rows


def _shards(folder: Path, prefixes: tuple[str, ...]) -> list[Path]:
    for place in (folder, folder / "data"):
        for prefix in prefixes:
            if shards := sorted(place.glob(f"{prefix}-*.parquet")):
                return shards
    return []


def _lacking_shards(shards: list[Path]) -> list[str]:
    """The names that ``-00000-of-00003`` promises and that are not there."""
    present = {path.name for path in shards}
    lacking = []
    for path in shards:
        if match := re.fullmatch(r"(.*-)(\d+)(-of-)(\d{1,6})(\.parquet)", path.name):
            head, number, of, total, tail = match.groups()
            lacking += [f"{head}{n:0{len(number)}d}{of}{total}{tail}" for n in range(int(total))]
    return sorted(set(lacking) - present)


def _encoded_bytes(column: Any) -> list[bytes]:
    import pyarrow as pa

    missing = column.null_count
    if pa.types.is_struct(column.type):
        if column.type.get_field_index("bytes") < 0:
            raise TypeError(f"the image column is a struct without 'bytes' ({column.type})")
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise TypeError(f"the image column must hold bytes, or a struct with 'bytes'; it holds {column.type}")
    if missing or column.null_count:
        raise TypeError("a row has no image bytes (paths to other files are not followed)")
    values: list[bytes] = column.to_pylist()
    return values


def _both(*tables: _Table) -> Iterator[Encoded]:
    for table in tables:
        for batch in table.images():
            yield from batch


def _distinct(*columns: list[Any] | None) -> tuple[str, ...]:
    return tuple(sorted({str(value) for column in columns if column for value in column}))


def _lines(path: Path) -> tuple[str, ...]:
    """The lines of a file of names, or nothing without the file."""
    if not path.is_file():
        return ()
    with reading(path):
        names = tuple(line.strip() for line in read_text(path).strip().splitlines())
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"{path}: every line must hold one name, and none twice")
    return names


def _images_below(folder: Path) -> list[Path]:
    classes = sorted(path for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))
    return [
        path
        for one in classes
        for path in sorted(one.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]


def _class_of(path: Path, folder: Path) -> str:
    return path.relative_to(folder).parts[1]


def _sorted_names(names: set[str]) -> tuple[str, ...]:
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _folder_labels(files: list[Path], folder: Path, names: tuple[str, ...]) -> Ints:
    label = {name: number for number, name in enumerate(names)}
    for path in files:
        if (name := _class_of(path, folder)) not in label:
            raise UserError(f"{path}: {name!r} is no class; known, from classes.txt or train/: {', '.join(names)}")
    return np.array([label[_class_of(path, folder)] for path in files], dtype=np.int64)


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
