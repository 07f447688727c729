"""Standard output for people: consoles, tables, and an area of a terminal that is drawn again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

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
            # A table without lines has one line a row; one with lines wraps its cells if its words fit.
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


def streamed_table(widths: Sequence[int]) -> Table:
    """Return a table for one row of several that are printed one by one, with columns of these widths and one more."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for width in widths:
        table.add_column(width=width, no_wrap=True)
    table.add_column()
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
    taken: set[str] = set()
    for label in dict.fromkeys(labels):
        words = ["…" if word in shared else word for word in label.split()]
        rest = " ".join(word for word, before in zip(words, ["", *words], strict=False) if not word == before == "…")
        number, mark = 1, ""
        while (text := _cut(rest, width - len(mark)) + mark) in taken:
            number += 1
            mark = f"~{number}"
        taken.add(text)
        texts[label] = text
    return [texts[label] for label in labels]


def _cut(text: str, width: int) -> str:
    """Return text with an ellipsis in place of its middle if it is too long."""
    tail = max(0, (width - 1) // 2)
    return text if len(text) <= width else f"{text[: max(0, width - 1 - tail)]}…{text[len(text) - tail :]}"


@dataclass(frozen=True)
class LabelCell:
    """One label of a column, which shortens its labels as ``distinct`` does where it is narrow.

    Attributes:
        labels: those of the whole column.
        index: the place of this one.
        shortened: the labels at each width so far; the cells of a column share it.
    """

    labels: Sequence[str]
    index: int
    shortened: dict[int, list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        if width not in self.shortened:
            self.shortened[width] = distinct(self.labels, width)
        yield Text(self.shortened[width][self.index], no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, len(self.labels[self.index])))


def label_cells(labels: Iterable[str]) -> list[LabelCell]:
    """Return the cells of a column of labels."""
    shown, shortened = list(map(visible, labels)), dict[int, list[str]]()
    return [LabelCell(shown, index, shortened) for index in range(len(shown))]


def can_redraw(console: Console) -> bool:
    """Whether a console can draw over what it has drawn."""
    return console.is_terminal and not console.is_dumb_terminal


def live_area(console: Console) -> AbstractContextManager[Live | None]:
    """Return an area that is drawn again at each update, and vanishes at the end; None without a terminal."""
    if can_redraw(console):
        return Live(console=console, auto_refresh=False, transient=True)
    return nullcontext()


@contextmanager
def screen(*, redraws: bool) -> Iterator[tuple[Console, Callable[[Iterable[Table | str]], None]]]:
    """Yield standard output and a function that shows tables and lines on it.

    With ``redraws`` they are drawn in place of the earlier ones, of which the last stay; else below them.
    """
    console = wide_console()
    shown: list[list[Table | str]] = []
    with live_area(console) if redraws else nullcontext() as live:

        def show(parts: Iterable[Table | str]) -> None:
            shown.append(list(parts))
            if live is None:
                _print(console, ["", *shown[-1]] if len(shown) > 1 else shown[-1])
                return
            drawn = (Text(visible(part)) if isinstance(part, str) else part for part in shown[-1])
            live.update(Group(*drawn), refresh=True)

        try:
            yield console, show
        finally:
            if live is not None:
                live.stop()
                _print(console, shown[-1] if shown else [])


def _print(console: Console, parts: Iterable[Table | str]) -> None:
    for part in parts:
        if isinstance(part, str):
            say(console, part)
        else:
            console.print(part)
