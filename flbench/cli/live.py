"""Progress: one live overview on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flbench.cli.drawing import fitting, plain_table
from flbench.cli.numbers import duration, handy, named, pace, value
from flbench.cli.overview import MOST_CELLS, Overview
from flbench.cli.sparkline import mixed_sparklines
from flbench.metric_specs import METRICS
from flbench.progress import Progress, Seen
from flbench.report.literal import visible

#: Rows of active runs at most, and at least where the terminal is low; more say how many they are.
MOST_ROWS = 16
FEWEST_ROWS = 3

#: Lines of the live overview besides active runs and cells: the bar, the summary, headings, the line of the cursor.
OTHER_LINES = 8

#: Lines about single runs at most, on a terminal at each look, in a pipe in one second; more are told in one line.
MOST_LINES = 4

#: Seconds after which a pipe hears that work goes on though no run has finished, and how the whole stands if some have.
SILENCE = 10.0
SUMMARY = 30.0


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


def say(console: Console, text: str, *, fold: bool = False) -> None:
    """Print text as it is: no markup, no colours; ``fold`` it between words on a terminal (not what holds a path)."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=not (fold and console.is_terminal))


def view_for(console: Console, overview: Callable[[], Overview]) -> View:
    """The live overview where it can be drawn, else plain lines."""
    can_draw = console.is_terminal and not console.is_dumb_terminal
    return LiveView(console, overview) if can_draw else PlainView(console)


class LiveView:
    """A bar for the whole, a row for each active run, the best cells; failures stay on the screen above.

    Args:
        console: a terminal.
        overview: makes what is shown besides numbers; called when there is something to show for the first time.
    """

    def __init__(self, console: Console, overview: Callable[[], Overview]) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._make_overview = overview
        self._overview: Overview | None = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, progress: Progress) -> None:
        """Draw the table anew."""
        failed = [seen for seen in progress.news if seen.state.status != "done"]
        for seen in failed[:MOST_LINES]:
            self._live.console.print(Text(visible(news_line(seen)), style="red"))
        if len(failed) > MOST_LINES:
            self._live.console.print(Text(f"and {len(failed) - MOST_LINES} more failed", style="red"))
        self._overview = self._overview or self._make_overview()
        self._live.update(live_table(progress, self._overview, self._live.console.height), refresh=True)


class PlainView:
    """A line for each run that ends; at most about one summary a second where they end faster."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._news: list[Seen] = []
        self._last: Progress | None = None
        self._printed = self._summed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._news:
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
        self._printed = time.monotonic()
        untold = len(lines) != len(self._news) or len(lines) > MOST_LINES or not self._news
        if untold or self._printed - self._summed > SUMMARY:
            self._print(summary_line(self._last))
            self._summed = self._printed
        self._news.clear()

    def _print(self, line: str) -> None:
        say(self._console, line)


def live_table(progress: Progress, overview: Overview, height: int) -> RenderableType:
    """The whole, the active runs and the best cells, in about ``height`` lines."""
    room = height - OTHER_LINES
    cells = overview.leaders(progress, max(1, min(MOST_CELLS, room - FEWEST_ROWS)))
    most = max(FEWEST_ROWS, min(MOST_ROWS, room - sum(table.row_count + 1 for table in cells) + 1))
    return Group(_bar(progress), Text(summary_line(progress)), *_active_table(progress, overview, most), *cells)


def _bar(progress: Progress) -> RenderableType:
    share = progress.share
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=72)
    row.add_row(ProgressBar(total=1, completed=share), f"{int(100 * share)} %")
    return row


def _active_table(progress: Progress, overview: Overview, most: int) -> list[RenderableType]:
    if not progress.active:
        return []
    shown = progress.active[:most]
    curves = [(seen.metric, overview.curves.of_run(seen.run_id, seen.round, seen.metric)) for seen in shown]
    scale, lines = mixed_sparklines(curves)
    title, values = headlines(shown)
    table = plain_table()
    table.add_column("running")
    for heading in ("round", title):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(scale, no_wrap=True)
    for seen, text, line in zip(shown, values, lines, strict=True):
        table.add_row(fitting(seen.label), f"{seen.round}/{seen.rounds}", text, line)
    hidden = len(progress.active) - most
    return [table, Text(f"and {hidden} more", style="dim")] if hidden > 0 else [table]


def headlines(shown: Sequence[Seen]) -> tuple[str, list[str]]:
    """The title of a column of headline numbers, and these; each with its name where they are not all of one sort."""
    metrics = {seen.metric for seen in shown}
    if len(metrics) == 1:
        return METRICS[shown[0].metric].title, [value(seen.metric, seen.value) for seen in shown]
    return "reached", [f"{seen.metric} {value(seen.metric, seen.value)}" for seen in shown]


def summary_line(progress: Progress) -> str:
    """The whole plan in one line."""
    parts = [f"{progress.done}/{progress.total} done"]
    parts += [f"{progress.diverged} diverged"] if progress.diverged else []
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [f"{len(progress.active)} running, {progress.workers} workers"]
    if progress.stopping:
        parts += ["stopping: workers finish their rounds"]
    elif progress.runs_per_hour is not None:
        parts += [pace(progress.rounds_per_second)] if progress.rounds_per_second else []
        parts += [f"{handy(progress.runs_per_hour)} runs/h", remaining(progress)]
    return ", ".join(parts)


def remaining(progress: Progress) -> str:
    """How long it will still take, at the speed that was measured."""
    return f"ETA {duration(progress.eta or 0)}"


def news_line(seen: Seen, *, whole: bool = False) -> str:
    """How one run ended; of a message of several lines the first, or the ``whole``."""
    result = seen.state.result
    if result is None:
        log = f" (log: {seen.log})" if seen.log else ""
        message = seen.state.message.strip() or "no message"
        first, *more = message.splitlines()
        told = message if whole or not more else f"{first} …"
        return f"{seen.label}: {seen.outcome}: {told}{log}"
    reached = f"diverged in round {result.rounds}" if result.status == "diverged" else named(seen.metric, seen.value)
    rounds = [f"{result.rounds} rounds"] if result.rounds else []
    return f"{seen.label}: {', '.join([reached, *rounds, duration(result.seconds)])}"
