"""Standard output for people: consoles, tables, and an area of a terminal that is drawn again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from flbench.literal import visible

#: Columns of a pipe, where prose is wrapped.
PIPE = 240

#: More columns than a table has.
UNLIMITED = 100_000


class Pipe(Console):
    """An output that is no terminal: it has the columns that a table needs, so that rich cuts no cell."""

    def __init__(self, **options: Any) -> None:
        super().__init__(width=PIPE, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, in as many columns as the tables need."""
        unlimited = self.options.update(max_width=UNLIMITED)
        self.width = PIPE
        for table in (one for one in objects if isinstance(one, Table)):
            size = Measurement.get(self, unlimited, table)
            # A table without lines is to have one line a row; the cells of others are wrapped where their words fit.
            if table.box is None or size.minimum > PIPE:
                self.width = max(self.width, size.maximum)
        super().print(*objects, **options)


def wide_console() -> Console:
    """Return standard output."""
    console = Console()
    return console if console.is_terminal else Pipe()


def say(console: Console, text: str, *, fold: bool = False) -> None:
    """Print text without markup or colours; ``fold`` breaks long lines on a terminal (not for lines with a path)."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=not (fold and console.is_terminal))


def plain_table(left: Sequence[str] = (), right: Sequence[str] = (), *, gap: int = 2, title: str = "") -> Table:
    """Return a table without lines, ``gap`` characters between columns; ``right`` are the right-aligned ones."""
    table = Table(*left, box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    table.title, table.title_justify, table.title_style = title or None, "left", ""
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def fitting(text: str) -> Text:
    """Return text in one line, which a narrow column cuts with an ellipsis."""
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


def distinct(labels: Sequence[str], width: int) -> list[str]:
    """Return labels in at most ``width`` characters each, so that those that differ stay different.

    If not all fit, the words that all share are left out; then the middle of what is too long; labels that would be
    equal after that get a number.

    >>> distinct(["fedavg ln E=10 s0", "fedavg ln E=10 s1"], 6)
    ['… s0', '… s1']
    """
    if max(map(len, labels), default=0) <= width:
        return list(labels)
    shared = set.intersection(*(set(label.split()) for label in labels)) if len({*labels}) > 1 else set()
    texts: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        rest, number, mark = _without(label, shared), 1, ""
        while (text := _cut(rest, width - len(mark)) + mark) in texts.values():
            number += 1
            mark = f"~{number}"
        texts[label] = text
    return [texts[label] for label in labels]


def _without(label: str, shared: set[str]) -> str:
    """Return a label without some words, and an ellipsis for those that were before or between the others."""
    kept: list[str] = []
    for word in label.split():
        if word not in shared:
            kept.append(word)
        elif kept[-1:] != ["…"]:
            kept.append("…")
    return " ".join(kept)


def _cut(text: str, width: int) -> str:
    """Return text with an ellipsis in place of its middle if it is too long."""
    tail = max(0, (width - 1) // 2)
    return text if len(text) <= width else f"{text[: max(0, width - 1 - tail)]}…{text[len(text) - tail :]}"


class LabelCells:
    """The cells of a column of labels; where the column is narrow, they are shortened as ``distinct`` does."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = [visible(label) for label in labels]
        self._at: dict[int, list[str]] = {}

    def __iter__(self) -> Iterator[LabelCell]:
        return (LabelCell(self, index) for index in range(len(self._labels)))

    def text(self, index: int, width: int) -> str:
        """Return one label in a column of some characters."""
        if width not in self._at:
            self._at[width] = distinct(self._labels, width)
        return self._at[width][index]

    def length(self, index: int) -> int:
        """Return the length of a whole label."""
        return len(self._labels[index])


@dataclass(frozen=True)
class LabelCell:
    """One label of a column."""

    column: LabelCells
    index: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(self.column.text(self.index, options.max_width), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, self.column.length(self.index)))


def can_redraw(console: Console) -> bool:
    """Whether a console can draw over what it has drawn."""
    return console.is_terminal and not console.is_dumb_terminal


def live_area(console: Console) -> AbstractContextManager[Live | None]:
    """Return an area that is drawn again at each update, and vanishes at the end; None without a terminal."""
    if can_redraw(console):
        return Live(console=console, auto_refresh=False, transient=True)
    return nullcontext()


class Screen:
    """Shows tables and lines; with ``redraws`` in place of the earlier ones, of which the last stay."""

    def __init__(self, *, redraws: bool) -> None:
        self.console = wide_console()
        self._live_area = live_area(self.console) if redraws else nullcontext()
        self._live: Live | None = None
        self._parts: list[Table | str] = []
        self._shown = 0

    def __enter__(self) -> Self:
        self._live = self._live_area.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live_area.__exit__(kind, error, trace)
        if self._live:
            self._print()

    def show(self, parts: Iterable[Table | str]) -> None:
        """Show something new."""
        self._parts = list(parts)
        if self._live:
            drawn = (Text(visible(part)) if isinstance(part, str) else part for part in self._parts)
            self._live.update(Group(*drawn), refresh=True)
            return
        if self._shown:
            say(self.console, "")
        self._print()
        self._shown += 1

    def _print(self) -> None:
        for part in self._parts:
            if isinstance(part, str):
                say(self.console, part)
            else:
                self.console.print(part)
