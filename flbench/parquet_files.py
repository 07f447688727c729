"""Parquet files of strangers: what a file unpacks to, counted in its headers before a decoder allocates anything.

A file of a few kilobytes can name gigabytes: compressed pages of zeros, a million rows that repeat one entry of a
dictionary, a footer with a hundred thousand columns, or a schema so deep that a decoder's recursion overflows. The
footer's totals may be false. So this module reads the header of every page, which is what a decoder allocates by. The
headers are Thrift's compact protocol (https://github.com/apache/parquet-format).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Any, NamedTuple

#: Most bytes that a file may unpack to for each of its own.
MOST_RATIO = 100

#: Most bytes of a footer, and most structures and lists in it: a decoder takes about 1 KB for each.
MOST_FOOTER, MOST_STRUCTURES = 16 << 20, 100_000

#: Most elements of a schema, whose depth a decoder follows by recursion.
MOST_ELEMENTS = 1000

#: Structures inside structures; the format needs 7.
_DEEPEST = 12

_MAGIC = b"PAR1"

#: Encodings of values one by one, and of the places of values in a dictionary.
_ONCE = (0, 2, 8)


@dataclass(frozen=True)
class Unpacked:
    """What a file unpacks to.

    Attributes:
        values: values of its longest column, thus at least its rows.
        repeated: bytes of the largest row that costs nothing to repeat, as that of entries of a dictionary.
    """

    values: int
    repeated: int

    def rows_within(self, size: int, most: int) -> int:
        """Return how many rows to decode at once, at most ``most``, so that they have about ``size`` bytes."""
        return max(1, min(most, size // max(1, self.repeated)))


def unpacked(data: bytes | mmap, most: int) -> Unpacked:
    """Return what a parquet file unpacks to.

    Raises:
        ValueError: the bytes are no parquet file, or its pages unpack to more than ``most`` bytes.
    """
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise ValueError("it does not begin and end as parquet files do")
    footer_end = len(data) - 8
    length = int.from_bytes(data[-8:-4], "little")
    if length > min(MOST_FOOTER, footer_end - 4):
        raise ValueError(f"its footer has {length:,} bytes")
    try:
        footer, _ = _Headers(data, footer_end).structure(footer_end - length)
        if len(footer[2]) > MOST_ELEMENTS:
            raise ValueError(f"its schema has {len(footer[2]):,} elements")
        return _unpacked(data, [group[1] for group in footer.get(4, [])], footer_end - length, most)
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("its headers are damaged") from None


def _unpacked(data: bytes | mmap, groups: list[list[dict[int, Any]]], end: int, most: int) -> Unpacked:
    """Return what the column chunks of row groups unpack to, all of which end before ``end``."""
    total = rows = most_repeated = 0
    for group in groups:
        longest = repeated = 0
        for chunk in group:
            pages = list(_pages(data, chunk[3], end))
            total += sum(page.size for page in pages)
            if total > most:
                raise ValueError(f"its {len(data):,} bytes unpack to more than {most:,}")
            longest = max(longest, sum(page.values for page in pages))
            repeated += max((page.size for page in pages if page.repeats), default=0)
        rows += longest
        most_repeated = max(most_repeated, repeated)
    return Unpacked(rows, most_repeated)


class _Page(NamedTuple):
    """A page: its bytes without compression, its values, and whether each of many values may be nearly all of it."""

    size: int
    values: int
    repeats: bool


def _pages(data: bytes | mmap, chunk: dict[int, Any], footer_at: int) -> Iterator[_Page]:
    """Yield the pages of a column chunk."""
    at = min(chunk[9], chunk.get(11) or chunk[9])  # of its data, and of its dictionary
    end = at + chunk[7]
    if not 4 <= at <= end <= footer_at:
        raise ValueError("a column lies outside of it")
    while at < end:
        header, at = _Headers(data, end).structure(at)
        at += header[3]
        if min(header[2], header[3]) < 0 or at > end:
            raise ValueError("a page lies outside of its column")
        if 7 in header:  # a dictionary
            yield _Page(header[2], 0, repeats=True)
        else:
            # The encoding is field 2 of a data page of the first version, and field 4 of one of the second.
            values, encoding = header.get(5) or header.get(8) or {}, 4 if 8 in header else 2
            yield _Page(header[2], values.get(1, 0), repeats=values.get(encoding) not in _ONCE)


class _Headers:
    """Structures of Thrift's compact protocol: values by the number of their field."""

    def __init__(self, data: bytes | mmap, end: int) -> None:
        self._data, self._end, self._left = data, end, MOST_STRUCTURES

    def structure(self, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
        """Return the structure at a position and the position after it."""
        self._count(depth)
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte(at):
            at += 1
            if head >> 4:
                number += head >> 4
            else:
                number, at = self._integer(at)
            fields[number], at = self._value(head & 15, at, depth)
        return fields, at + 1

    def _value(self, kind: int, at: int, depth: int) -> tuple[Any, int]:
        if kind in (1, 2):  # true and false
            return kind == 1, at
        if kind == 3:
            return self._byte(at), at + 1
        if kind in (4, 5, 6):
            return self._integer(at)
        if kind == 7:
            return None, at + 8
        if kind == 8:
            size, at = self._unsigned(at)
            return None, at + size  # no text is needed
        if kind in (9, 10):
            return self._items(at, depth + 1)
        if kind == 12:
            return self.structure(at, depth + 1)
        raise ValueError("its headers are damaged")

    def _count(self, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError(f"its headers have more than {MOST_STRUCTURES:,} structures, or {_DEEPEST} in each other")

    def _items(self, at: int, depth: int) -> tuple[list[Any], int]:
        self._count(depth)
        head = self._byte(at)
        count, at = (head >> 4, at + 1) if head >> 4 < 15 else self._unsigned(at + 1)
        if count > self._end - at:
            raise ValueError("its headers are damaged")
        items = []
        for _ in range(count):
            if head & 15 in (1, 2):  # a byte each here
                item, at = self._byte(at), at + 1
            else:
                item, at = self._value(head & 15, at, depth)
            items.append(item)
        return items, at

    def _integer(self, at: int) -> tuple[int, int]:
        value, at = self._unsigned(at)
        return (value >> 1) ^ -(value & 1), at

    def _unsigned(self, at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte(at)
            value |= (byte & 127) << shift
            at += 1
            if byte < 128:
                return value, at
        raise ValueError("its headers are damaged")

    def _byte(self, at: int) -> int:
        if at >= self._end:
            raise IndexError(at)
        return self._data[at]
