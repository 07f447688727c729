"""Progress: one live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flbench.cli.visible import visible
from flbench.orchestrate import Progress, Seen

#: Rows of active runs at most; more say how many they are.
MOST_ROWS = 16

#: Plain lines about single runs at most, in one second; more are told in one line.
MOST_LINES = 4

#: Seconds after which a pipe hears that work goes on though no run has finished.
SILENCE = 10.0


class View(Protocol):
    """Shows how a plan goes on."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say what was not said yet, and leave the screen in order."""

    def show(self, progress: Progress) -> None:
        """Bring the display up to date."""


def wide_console() -> Console:
    """Standard output; a pipe has no width, so that nothing is cut there for want of room."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


def say(console: Console, text: str) -> None:
    """Print text as it is: no markup, no colours, no folding."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def view_for(console: Console) -> View:
    """The live table where it can be drawn, else plain lines."""
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)


class LiveView:
    """A bar for the whole, a row for each active run; failures stay on the screen above."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, progress: Progress) -> None:
        """Draw the table anew."""
        for seen in progress.news:
            if seen.state.status != "done":
                self._live.console.print(Text(visible(news_line(seen)), style="red"))
        self._live.update(live_table(progress), refresh=True)


class PlainView:
    """A line for each run that ends; at most about one summary a second where they end faster."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._news: list[Seen] = []
        self._last: Progress | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()

    def show(self, progress: Progress) -> None:
        """Print what is new, if the last lines are a second old."""
        self._last = progress
        self._news += progress.news
        silent = time.monotonic() - self._printed
        if (self._news and silent > 1) or silent > SILENCE:
            self._flush()

    def _flush(self) -> None:
        if self._last is None:
            return
        failed = [seen for seen in self._news if seen.state.status != "done"]
        lines = self._news if len(self._news) <= MOST_LINES else failed
        for seen in lines[:MOST_LINES]:
            self._print(news_line(seen))
        if len(lines) != len(self._news) or len(lines) > MOST_LINES or not self._news:
            self._print(summary_line(self._last))
        self._news.clear()
        self._printed = time.monotonic()

    def _print(self, line: str) -> None:
        say(self._console, line)


def live_table(progress: Progress) -> RenderableType:
    """The bar and the active runs."""
    # Padded, because a bare bar ends without a new line.
    bar = Padding(ProgressBar(total=max(1, progress.rounds_total), completed=progress.rounds_done, width=72), 0)
    rows = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for title in ("run", "round", "accuracy"):
        rows.add_column(title, justify="left" if title == "run" else "right", no_wrap=True)
    for seen in progress.active[:MOST_ROWS]:
        rows.add_row(Text(visible(seen.label)), f"{seen.round}/{seen.rounds}", percent(seen.acc))
    hidden = len(progress.active) - MOST_ROWS
    return Group(
        bar, Text(summary_line(progress)), rows, *([Text(f"and {hidden} more", style="dim")] if hidden > 0 else [])
    )


def summary_line(progress: Progress) -> str:
    """The whole plan in one line."""
    parts = [f"{progress.done}/{progress.total} done"]
    parts += [f"{progress.diverged} diverged"] if progress.diverged else []
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [f"{len(progress.active)} running", f"{progress.workers} workers"]
    if progress.rounds_per_second is not None:
        parts += [f"{progress.rounds_per_second:.3g} rounds/s", f"ETA {duration(progress.eta or 0)}"]
    return ", ".join(parts)


def news_line(seen: Seen) -> str:
    """How one run ended."""
    result = seen.state.result
    if result is None:
        log = f" (log: {seen.log})" if seen.log else ""
        return f"{seen.label}: {seen.outcome}: {seen.state.message or 'no message'}{log}"
    reached = f"diverged in round {result.rounds}" if result.status == "diverged" else percent(seen.acc)
    return f"{seen.label}: {reached}, {result.rounds} rounds, {duration(result.seconds)}"


def percent(accuracy: float | None) -> str:
    """An accuracy for people; a dash where there is none yet."""
    return "–" if accuracy is None else f"{100 * accuracy:.1f} %"


def duration(seconds: float) -> str:
    """Seconds for people: 4.2 s, 3:07, 2:15:00."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
