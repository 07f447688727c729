"""What a command shows again and again: drawn in place on a terminal, one after the other anywhere else."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flbench.cli.live import say, wide_console
from flbench.report.literal import visible


class Screen:
    """Shows tables and lines; where it ``redraws``, in place of what it showed before, and the last ones stay."""

    def __init__(self, *, redraws: bool) -> None:
        self._console = wide_console()
        can_draw = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if redraws and can_draw else None
        self._parts: list[Table | str] = []
        self._shown = 0

    @property
    def width(self) -> int:
        """Columns there are."""
        return self._console.width

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, trace)
            self._print()

    def show(self, parts: Iterable[Table | str]) -> None:
        """Show something new."""
        self._parts = list(parts)
        if self._live:
            drawn = (Text(visible(part)) if isinstance(part, str) else part for part in self._parts)
            self._live.update(Group(*drawn), refresh=True)
            return
        if self._shown:
            say(self._console, "")
        self._print()
        self._shown += 1

    def _print(self) -> None:
        for part in self._parts:
            if isinstance(part, str):
                say(self._console, part)
            else:
                self._console.print(part)
