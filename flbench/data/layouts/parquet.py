"""Parquet shards in the style of Hugging Face."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    names_in,
    numbered,
    one_form,
)
from flbench.errors import UserError
from flbench.parquet_files import MOST_RATIO, unpacked
from flbench.regular import open_regular

#: Bytes of encoded images to read at once, where a file repeats them.
_BYTES = 1 << 28


@dataclass(frozen=True)
class Parquet(Layout):
    """Parquet shards in the style of Hugging Face: ``train-*.parquet`` and ``test-*.parquet``, also under ``data/``.

    Columns: ``image`` (or ``img``) as encoded bytes or as a struct with ``bytes``; ``label`` as integers; optional
    ``domain`` (strings), and ``index`` (the row in the official order, by which rows are then sorted). ``classes.txt``
    and ``domains.txt`` name label and domain n in line n.

    ``label`` and ``test`` list the possible names of the column of labels and of the test shards; the first one found
    is read.
    """

    title: ClassVar[str] = "parquet shards"
    version: ClassVar[int] = 2
    optional: ClassVar[tuple[str, ...]] = ("classes.txt", "domains.txt")

    label: tuple[str, ...] = ("label",)
    test: tuple[str, ...] = ("test",)

    def find(self, folder: Path) -> FoundFiles:
        lacking, files = [], []
        for prefixes in (("train",), self.test):
            shards = _shards(folder, prefixes)
            files += shards
            lacking += _lacking_shards(shards) if shards else [f"{prefixes[0]}-*.parquet"]
        return FoundFiles(files, lacking)

    def counts(self, folder: Path) -> tuple[int, int]:
        """Return the numbers of rows in the shards' footers."""
        # exact: whole numbers
        train, test = (sum(map(_rows, _shards(folder, prefixes))) for prefixes in (("train",), self.test))
        return train, test

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Read the labels of every shard now; decode images in batches later."""
        train, test = (_Table(_shards(folder, prefixes), self.label) for prefixes in (("train",), self.test))
        domain_names = expected.domains or names_in(folder / "domains.txt")
        if not domain_names:
            domain_names = tuple(sorted({str(name) for table in (train, test) for name in table.domains or ()}))
        encoded = (image for table in (train, test) for batch in table.images() for image in batch)
        shape = expected.shape or common_shape(encoded, expected.size)
        splits = []
        for table in (train, test):
            rows = np.argsort(table.order)  # the inverse permutation
            blocks = decoded_blocks(table.images(), rows, shape, expected)
            splits.append(RawSplit(table.labels[table.order], shape, blocks, table.domain_numbers(domain_names)))
        class_names = names_in(folder / "classes.txt") or train.class_names()
        return RawData(splits[0], splits[1], class_names, domain_names)


class _Table:
    """The rows of one split's parquet shards.

    Images are read shard by shard: a ``pyarrow.dataset`` of all of them reads ahead, which takes two to three times
    the memory.
    """

    def __init__(self, shards: Sequence[Path], label: tuple[str, ...]) -> None:
        self.folder = shards[0].parent
        self.files: list[tuple[Path, Any, int]] = []
        for shard in shards:
            with reading(shard):
                self.files.append((shard, *_open(shard)))
        self.image, self.label = self._first_of(("image", "img")), self._first_of(label)
        self.labels = self._integers(self.label)
        index = self._integers("index") if self._has("index") else np.arange(len(self.labels))
        self.order: Ints = np.argsort(index, kind="stable").astype(np.int64)
        ordered = index[self.order]
        if len(repeated := ordered[1:][ordered[1:] == ordered[:-1]]):
            raise UserError(f"{self.folder}: the column 'index' holds {repeated[0]} more than once")
        self.domains = self._column("domain") if self._has("domain") else None

    def domain_numbers(self, names: tuple[str, ...]) -> Ints | None:
        """Return each row's domain as its place in ``names``, rows in order; None where the set has no domains."""
        if not names:
            return None
        if self.domains is None:
            raise UserError(f"{self.files[0][0]} has no column 'domain'; the set has domains: {', '.join(names)}")
        number = numbered(names, str(self.folder))
        if unknown := sorted({str(name) for name in self.domains if one_form(str(name)) not in number}):
            raise UserError(f"{self.folder}: domain {unknown[0]!r} is not among its domains ({', '.join(names)})")
        return np.array([number[one_form(str(name))] for name in self.domains], dtype=np.int64)[self.order]

    def images(self) -> Iterator[list[Encoded]]:
        """Yield encoded images in the order of the files, in batches."""
        for path, file, rows in self.files:
            row = 0
            with reading(path):
                for batch in file.iter_batches(rows, columns=[self.image]):
                    encoded = _encoded_bytes(batch.column(0))
                    yield [Encoded(f"{path}, row {row + at}", value) for at, value in enumerate(encoded)]
                    row += len(encoded)

    def class_names(self) -> tuple[str, ...]:
        """Return the names that Hugging Face stores in the schema's metadata, if any."""
        raw = (self.files[0][1].schema_arrow.metadata or {}).get(b"huggingface")
        try:
            return tuple(map(str, json.loads(raw)["info"]["features"][self.label]["names"])) if raw else ()
        except (ValueError, KeyError, TypeError):
            return ()

    def _has(self, column: str) -> bool:
        return all(column in file.schema_arrow.names for _, file, _ in self.files)

    def _first_of(self, names: tuple[str, ...]) -> str:
        """Return the first of these columns that all shards have."""
        for name in names:
            if self._has(name):
                return name
        path, columns = next(
            (path, file.schema_arrow.names) for path, file, _ in self.files if names[0] not in file.schema_arrow.names
        )
        raise UserError(f"{path} has no column {names[0]!r}; its columns: {', '.join(columns)}")

    def _column(self, name: str) -> list[Any]:
        values = []
        for path, file, _ in self.files:
            with reading(path):
                values += file.read(columns=[name]).column(0).to_pylist()
        return values

    def _integers(self, name: str) -> Ints:
        values = self._column(name)
        if odd := [value for value in values if type(value) is not int]:
            raise UserError(f"{self.folder}: the column {name!r} must hold integers, got {odd[0]!r}")
        if (largest := max(values, default=0)) >= 2**63:
            raise UserError(f"{self.folder}: the column {name!r} holds {largest}, which is too large")
        return np.array(values, dtype=np.int64)


def _open(path: Path) -> tuple[Any, int]:
    """Return an open shard and the rows to decode at once; raises ValueError for more than its size can hold."""
    import pyarrow.parquet as pq

    with open_regular(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        size = unpacked(data, MOST_RATIO * len(data))
        if size.values > len(data):
            raise ValueError(f"its {len(data):,} bytes hold {size.values:,} images")
    return pq.ParquetFile(path), size.rows_within(_BYTES, BATCH)


def _rows(shard: Path) -> int:
    with reading(shard):
        rows: int = _open(shard)[0].metadata.num_rows
    return rows


def _shards(folder: Path, prefixes: tuple[str, ...]) -> list[Path]:
    for place in (folder, folder / "data"):
        for prefix in prefixes:
            if shards := sorted(place.glob(f"{prefix}-*.parquet")):
                return shards
    return []


def _lacking_shards(shards: list[Path]) -> list[str]:
    """Return the missing ones of the files that ``-00000-of-00003`` stands for."""
    lacking = set()
    for path in shards:
        if match := re.fullmatch(r"(.*-)(\d+)(-of-)(\d{1,6})(\.parquet)", path.name):
            head, number, of, total, tail = match.groups()
            lacking |= {f"{head}{n:0{len(number)}d}{of}{total}{tail}" for n in range(int(total))}
    return sorted(lacking - {path.name for path in shards})


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
