"""Tables as all commands draw them."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from flbench.report.literal import visible


def plain_table(gap: int = 2) -> Table:
    """A table without lines, ``gap`` columns between two of its own."""
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")


def fitting(text: str) -> Text:
    """Text in one line that is cut, and shows it, where its column is too narrow."""
    return Text(visible(text), no_wrap=True, overflow="ellipsis")
