"""Show a sweep's progress: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flbench.cli.curves import Curves
from flbench.cli.numbers import duration, handy, named, pace
from flbench.cli.progress_tables import MOST_CELLS, best_cells, running_table
from flbench.cli.screen import live_area, say
from flbench.literal import visible
from flbench.messages import counted
from flbench.progress import Progress, RunSnapshot
from flbench.store import Store

#: Rows of active runs at most, and at least on a low terminal; further runs are counted.
MOST_ROWS = 16
FEWEST_ROWS = 3

#: Lines of the live display besides active runs and cells: the bar, the summary, headings, the line of the cursor.
OTHER_LINES = 8

#: Lines about single runs at most, at each update of a terminal, or in one second of a pipe; further ones are counted.
MOST_LINES = 4

#: What the first Ctrl-C does, and the second.
STOPPING = "stopping: workers finish their rounds; Ctrl-C again kills them"

#: Seconds without output after which a summary is written to a pipe, and between two summaries while runs end.
SILENCE = 10.0
SUMMARY = 30.0


@contextmanager
def progress_view(console: Console, store: Store) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress: in a live display if the console allows one, else in plain lines."""
    with live_area(console) as live:
        if live is not None:
            curves = Curves(store)
            yield lambda progress: show_live(live, progress, curves)
            return
        plain = PlainView(console)
        try:
            yield plain.show
        finally:
            plain.close()


def show_live(live: Live, progress: Progress, curves: Curves) -> None:
    """Draw a bar for the whole, a row for each active run and the best cells; failures stay on the screen above."""
    failed = [seen for seen in progress.news if seen.state.status != "done"]
    for seen in failed[:MOST_LINES]:
        live.console.print(Text(visible(news_line(seen)), style="red"))
    if len(failed) > MOST_LINES:
        live.console.print(Text(f"and {len(failed) - MOST_LINES} more failed", style="red"))
    live.update(live_table(progress, curves, live.console.height), refresh=True)


class PlainView:
    """A line for each run that ends; at most about one summary a second if they end faster."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._news: list[RunSnapshot] = []
        self._last: Progress | None = None
        self._printed = self._summed = time.monotonic()
        self._stopping = False

    def show(self, progress: Progress) -> None:
        """Print what is new, if the last lines are a second old."""
        self._last = progress
        self._news += progress.news
        silent = time.monotonic() - self._printed
        answers = progress.stopping and not self._stopping  # the user pressed Ctrl-C
        self._stopping = progress.stopping
        if (self._news and silent > 1) or silent > SILENCE or answers:
            self._flush(progress)

    def close(self) -> None:
        """Print what was not printed yet."""
        if self._news and self._last:
            self._flush(self._last)

    def _flush(self, progress: Progress) -> None:
        failed = [seen for seen in self._news if seen.state.status != "done"]
        lines = self._news if len(self._news) <= MOST_LINES else failed
        for seen in lines[:MOST_LINES]:
            say(self._console, news_line(seen))
        self._printed = time.monotonic()
        omitted = len(lines) != len(self._news) or len(lines) > MOST_LINES or not self._news
        if omitted or progress.stopping or self._printed - self._summed > SUMMARY:
            say(self._console, summary_line(progress))
            self._summed = self._printed
        self._news.clear()


def live_table(progress: Progress, curves: Curves, height: int) -> RenderableType:
    """Return the whole, the active runs and the best cells, in about ``height`` lines."""
    room = height - OTHER_LINES
    cells = best_cells(progress, curves, max(1, min(MOST_CELLS, room - FEWEST_ROWS)))
    most = max(FEWEST_ROWS, min(MOST_ROWS, room - sum(table.row_count + 1 for table in cells) + 1))
    bar = Table.grid(padding=(0, 1, 0, 0))
    bar.add_column(width=72)
    bar.add_row(ProgressBar(total=1, completed=progress.share), f"{int(100 * progress.share)} %")
    running = [running_table(progress.active[:most], curves)] if progress.active else []
    hidden = len(progress.active) - most
    more = [Text(f"and {hidden} more", style="dim")] if hidden > 0 else []
    return Group(bar, Text(summary_line(progress)), *running, *more, *cells)


def summary_line(progress: Progress) -> str:
    """Return the state of the whole plan in one line."""
    parts = [f"{progress.done}/{progress.total} done"]
    parts += [f"{progress.diverged} diverged"] if progress.diverged else []
    parts += [f"{progress.dropped} dropped"] if progress.dropped else []
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [progress.more] if progress.more else []
    parts += [f"{len(progress.active)} running, {counted(progress.workers, 'worker')}"]
    if progress.delayed:
        parts += [f"{progress.delayed}; trying again"]
    if progress.stopping:
        parts += [STOPPING]
    elif progress.runs_per_hour is not None:
        parts += [pace(progress.rounds_per_second)] if progress.rounds_per_second else []
        parts += [f"{handy(progress.runs_per_hour)} runs/h", remaining(progress)]
    return ", ".join(parts)


def remaining(progress: Progress) -> str:
    """Return the remaining time at the measured speed."""
    return f"ETA {duration(progress.eta or 0)}"


def news_line(seen: RunSnapshot, *, whole: bool = False) -> str:
    """Return how one run ended; of a message of several lines the first, or the ``whole``."""
    result = seen.state.result
    if result is None:
        log = f" (log: {seen.log})" if seen.log else ""
        message = seen.state.message.strip() or "no message"
        first, *more = message.splitlines()
        shown = message if whole or not more else f"{first} …"
        return f"{seen.label}: {seen.outcome}: {shown}{log}"
    reached = f"diverged in round {result.rounds}" if result.status == "diverged" else named(seen.metric, seen.value)
    rounds = [counted(result.rounds, "round")] if result.rounds and not seen.dropped else []
    rounds += [f"dropped at round {seen.rounds}"] if seen.dropped else []
    return f"{seen.label}: {', '.join([reached, *rounds, duration(result.seconds)])}"
