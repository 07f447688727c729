"""A table of one file: comma-separated values, or parquet."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Ints
from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, split_of_arrays
from flbench.data.layouts.numbers import Numbers, grouped, standardized
from flbench.errors import UserError
from flbench.messages import unknown
from flbench.parquet_files import MOST_RATIO, unpacked
from flbench.regular import open_regular
from flbench.streams import stream

#: Values of a column of categories, each of which is a feature; and bytes of all features.
MOST_CATEGORIES, MOST_BYTES = 1000, 16 * 2**30
#: The largest number of float32, and the largest up to which every whole number is a float64: others may be rounded.
LARGEST, MOST_WHOLE = float(np.finfo(np.float32).max), 2**53


@dataclass(frozen=True)
class Columns:
    """The uses of columns; all others are features."""

    target: str
    split: str | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    split_seed: int = 0


@dataclass(frozen=True)
class Table(Layout):
    """``.parquet``, or text with a line of names, and values between commas, semicolons or tabs."""

    title: ClassVar[str] = "table"
    splits: ClassVar[bool] = True

    columns: Columns

    def settings(self) -> dict[str, Any]:
        return {"columns": dataclasses.asdict(self.columns)}

    def find(self, folder: Path) -> FoundFiles:
        """Return the table: here ``folder`` is the file itself."""
        return FoundFiles([folder], []) if folder.is_file() else FoundFiles([], ["file"])

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Read the whole table; raises UserError for a missing value, with its line."""
        table = _TableFile(folder)
        uses = self.columns
        special = [uses.target, *([uses.split] if uses.split else ()), *expected.groups]
        for name in (*special, *uses.categorical, *uses.drop):
            if name not in table.names:
                raise UserError(f"{folder}: {unknown('column', name, table.names)}")
        features = [name for name in table.names if name not in (*special, *uses.drop)]
        if not features:
            raise UserError(f"{folder}: no column is left for the features; its columns: {', '.join(table.names)}")
        labels, classes = table.classes(uses.target)
        is_test = (
            table.is_test(uses.split) if uses.split else _drawn(labels, expected.test_fraction or 0, uses.split_seed)
        )
        groups = [table.values(name) for name in expected.groups]
        numbers, categories = table.features(features, uses.categorical)
        halves = [[array[rows] for array in (numbers, categories, labels)] for rows in (~is_test, is_test)]
        if not len(halves[0][0]) or not len(halves[1][0]):
            raise UserError(f"{folder}: {len(halves[0][0])} rows for training and {len(halves[1][0])} for testing")
        if expected.standardize and numbers.shape[1]:
            halves[0][0], halves[1][0] = standardized(halves[0][0], halves[1][0])
        train, test = (
            split_of_arrays(np.concatenate([own, one_hot], 1), of, folder, None) for own, one_hot, of in halves
        )
        group_names: dict[str, tuple[str, ...]] = {}
        if groups:
            of_train, of_test, names = grouped([(values[~is_test], values[is_test]) for values in groups])
            train, test = replace(train, groups=of_train), replace(test, groups=of_test)
            group_names = dict(zip(expected.groups, names, strict=True))
        note = (
            f"{numbers.shape[1]} columns of numbers and {len(features) - numbers.shape[1]} of categories are "
            f"{numbers.shape[1] + categories.shape[1]} features"
        )
        return RawData(train, test, classes, notes=(note,), group_names=group_names)


class _TableFile:
    """The columns of a file, without missing values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            self.is_parquet = path.suffix == ".parquet"
            self._table = _read_parquet(path) if self.is_parquet else _read_text(path)
        self.names: list[str] = self._table.column_names
        if twice := next((name for name in self.names if self.names.count(name) > 1), None):
            raise UserError(f"{path}: two columns have the name {twice!r}; rename one")

    def values(self, name: str, *, is_feature: bool = False) -> Numbers:
        """Return the values of a column: strings, whole numbers, floats or truth values."""
        import pyarrow as pa

        column = self._table.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))[0])
            drop = f", or leave out the column: drop: [{name}]" if is_feature else ""
            raise UserError(
                f"{self._place(row)}: the column {name!r} has no value; fill it in, leave the line out{drop}"
            )
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return np.array(column.to_pylist(), dtype=np.str_)
        if not any(kind(column.type) for kind in kinds):
            drop = f", or leave it out: drop: [{name}]" if is_feature else ""
            raise UserError(
                f"{self.path}: the column {name!r} holds {column.type}; expected numbers, strings or truth values{drop}"
            )
        values: Numbers = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind == "f" and (odd := ~(abs(values.astype(np.float64)) <= LARGEST)).any():
            row = int(np.flatnonzero(odd)[0])
            raise UserError(
                f"{self._place(row)}: the column {name!r} holds {values[row]}; expected a finite number of float32"
            )
        return values

    def classes(self, name: str) -> tuple[Ints, tuple[str, ...]]:
        """Return the labels, counted from 0, and the names of the classes."""
        values = self.values(name)
        if values.dtype.kind == "f":
            if (odd := (values != np.rint(values)) | (abs(values) > MOST_WHOLE)).any():
                row = int(np.flatnonzero(odd)[0])
                raise UserError(
                    f"{self._place(row)}: the label {name!r} is {values[row]:g}; expected classes, as whole numbers "
                    "or strings"
                )
            values = values.astype(np.int64)
        classes, labels = np.unique(values, return_inverse=True)
        return labels.astype(np.int64), tuple(map(str, classes.tolist()))

    def is_test(self, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows are those of the test set."""
        values = self.values(name).astype(np.str_)
        if (odd := ~np.isin(values, ("train", "test"))).any():
            row = int(np.flatnonzero(odd)[0])
            raise UserError(
                f"{self._place(row)}: the column {name!r} is {str(values[row])!r}; expected 'train' or 'test'"
            )
        chosen: np.ndarray[Any, np.dtype[np.bool_]] = values == "test"
        return chosen

    def features(self, names: Sequence[str], categorical: Sequence[str]) -> tuple[Numbers, Numbers]:
        """Return the columns of numbers (N, n), and one column for each value of the others (N, m), as float32."""
        numbers, categories, rows = [], [], self._table.num_rows
        for name in names:
            values = self.values(name, is_feature=True)
            if values.dtype.kind != "U" and name not in categorical:
                numbers.append(values.astype(np.float32))
                continue
            if name not in categorical:
                self._require_words(name, values)
            found, places = np.unique(values, return_inverse=True)
            if len(found) > MOST_CATEGORIES:
                raise UserError(
                    f"{self.path}: the column {name!r} has {len(found):,} different values, and categories at most "
                    f"{MOST_CATEGORIES:,}; leave it out: drop: [{name}]"
                )
            categories.append((places, len(found)))
        width = len(numbers) + sum(count for _, count in categories)  # exact: whole numbers
        if (size := 4 * rows * width) > MOST_BYTES:
            raise UserError(
                f"{self.path}: its {width:,} features have {size:,} bytes, more than the {MOST_BYTES:,} that are read"
            )
        one_hot = [np.equal.outer(places, np.arange(count)).astype(np.float32) for places, count in categories]
        empty = np.zeros((rows, 0), np.float32)
        return np.stack(numbers, 1) if numbers else empty, np.concatenate([empty, *one_hot], 1)

    def _require_words(self, name: str, values: Numbers) -> None:
        """Raise UserError for a column of strings, most of which are numbers."""
        odd = [row for row, value in enumerate(values.tolist()) if not _is_number(value)]
        if 0 < len(odd) < len(values) / 2:
            raise UserError(
                f"{self._place(odd[0])}: the column {name!r} holds {str(values[odd[0]])!r} among numbers; correct it, "
                f"or read the column as categories: categorical: [{name}]"
            )

    def _place(self, row: int) -> str:
        if self.is_parquet or self._lines() > self._table.num_rows + 1:  # a value between quotes has several lines
            return f"{self.path}, row {row + 1}"
        return f"{self.path}:{row + 2}"

    def _lines(self) -> int:
        with open_regular(self.path) as file:
            return sum(1 for _ in file)  # exact: whole numbers


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _drawn(labels: Ints, fraction: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are those of the test set: a fraction of each class, rounded."""
    is_test = np.zeros(len(labels), dtype=np.bool_)
    for label in range(int(labels.max(initial=-1)) + 1):
        rows = stream(seed, "table", label).permutation(np.flatnonzero(labels == label))
        is_test[rows[: int(len(rows) * fraction + 0.5)]] = True
    return is_test


def _read_text(path: Path) -> Any:
    """Return the table of a text file; a line is a row, so that messages name lines."""
    from pyarrow import csv

    with open_regular(path) as file:
        first = file.readline(1 << 20).decode("utf-8-sig")
        separator = max(",;\t", key=first.count)
        file.seek(0)
        return csv.read_csv(
            file,
            parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=False, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )


def _read_parquet(path: Path) -> Any:
    """Return the table of a parquet file; raises ValueError for more than its size can hold."""
    import pyarrow.parquet as pq

    with open_regular(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        size = unpacked(data, MOST_RATIO * len(data))
        if size.values > MOST_RATIO * len(data):
            raise ValueError(f"its {len(data):,} bytes hold {size.values:,} rows")
        return pq.read_table(file)
