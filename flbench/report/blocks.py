"""The blocks of a document before it is Markdown or HTML.

Texts of paragraphs and items are inline Markdown (``**bold**``, ``*emphasis*``, `` `code` ``, ``[link](target)``), in
which strings from a store are escaped with ``literal``. All other texts are plain.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The key of bold entries among the marks of a grid, and the marks that mean the same in most grids.
BOLD = "bold"
_MARKS = {"±": "half-width of the 95 % interval of the mean"}


@dataclass(frozen=True)
class Heading:
    """A title; ``level`` 1 is the document's."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Lines of text; a ``warning`` is highlighted."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Items:
    """An unordered list."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """A command for a shell."""

    text: str


@dataclass(frozen=True)
class Entry:
    """A cell of a grid."""

    text: str  # the first line
    below: tuple[str, ...] = ()  # smaller lines under it
    bold: bool = False
    mark: str = ""  # follows the text
    order: float | None = None  # sort key; None: the text
    tip: tuple[str, ...] = ()  # lines of a tooltip
    link: str = ""  # address that the text leads to in HTML


@dataclass(frozen=True)
class Grid:
    """A table; the first ``names`` and the last ``remarks`` columns are text, the others numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    names: int
    remarks: int = 0
    marks: Mapping[str, str] = field(default_factory=dict)  # what marks mean, and ``BOLD``; shown by HTML alone

    def used_marks(self) -> dict[str, str]:
        """Return what the marks mean that its entries have."""
        entries = [entry for row in self.rows for entry in row]
        used = {char for entry in entries for char in f"{entry.text}{entry.mark}"}
        used |= {BOLD for entry in entries if entry.bold}
        return {mark: meaning for mark, meaning in {**_MARKS, **self.marks}.items() if mark in used}

    def is_number(self, column: int) -> bool:
        """Return whether a column holds numbers."""
        return self.names <= column < len(self.head) - self.remarks


@dataclass(frozen=True)
class Figure:
    """A picture in an SVG file; Markdown links it, HTML embeds it."""

    caption: str
    svg: Path


@dataclass(frozen=True)
class Fold:
    """Blocks that HTML folds below the line ``summary``; Markdown names them, and links their figures.

    ``in_markdown``: Markdown folds them, too.
    """

    summary: str
    blocks: tuple[Block, ...]
    in_markdown: bool = False


@dataclass(frozen=True)
class Charts:
    """Interactive charts (``report.charts``), which only HTML has; a page has them once."""

    data: Mapping[str, Any]


@dataclass(frozen=True)
class Updated:
    """When a page was made, which only HTML shows; it loads itself again every ``period`` seconds, None: never."""

    at: float  # seconds since 1970
    period: float | None


Block = Heading | Paragraph | Items | Code | Grid | Figure | Fold | Charts | Updated


def shifted(block: Block, levels: int) -> Block:
    """Return a block; a heading is moved down by some levels."""
    return dataclasses.replace(block, level=block.level + levels) if isinstance(block, Heading) else block


def anchor(text: str) -> str:
    """Return the anchor that GitHub gives a title."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def words(*texts: str) -> tuple[Entry, ...]:
    """Return cells of text."""
    return tuple(Entry(text) for text in texts)
