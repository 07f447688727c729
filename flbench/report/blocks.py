"""What a report is written of, before it is Markdown or HTML.

The texts of paragraphs and items are inline Markdown (``**bold**``, ``*emphasis*``, `` `code` ``, ``[link](target)``),
in which strings from a store stand through ``literal``. All other texts are shown as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Heading:
    """A title; ``level`` 1 is the document's."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Lines of text; ``warning`` stands out."""

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
    """A position of a grid.

    Attributes:
        text: what it says first.
        below: smaller lines under it.
        bold: whether the text stands out.
        mark: stands after the text.
        order: what it is sorted by; None: by its text.
        tip: lines that are shown to whoever points at it.
    """

    text: str
    below: tuple[str, ...] = ()
    bold: bool = False
    mark: str = ""
    order: float | None = None
    tip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """A table; the first ``names`` and the last ``remarks`` columns hold words, those between them numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    names: int
    remarks: int = 0

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return self.names <= column < len(self.head) - self.remarks


@dataclass(frozen=True)
class Figure:
    """A picture that lies in files; without a ``link`` it is only for pages that hold it."""

    caption: str
    link: str
    svg: Path


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that opens them."""

    summary: str
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Items | Code | Grid | Figure | Fold


def words(*texts: str) -> tuple[Entry, ...]:
    """Positions that only say something."""
    return tuple(Entry(text) for text in texts)
