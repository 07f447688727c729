"""Standard output for people: consoles, tables, and an area of a terminal that is drawn again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flbench.report.literal import visible


def wide_console() -> Console:
    """Return standard output; a pipe is wide enough that rich cuts no cell."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


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
