"""A progress bar in notebooks for ``flbench.run`` and ``flbench.sweep``.

rich draws it, and IPython replaces it in place. rich's own live display needs ipywidgets, which many notebooks lack.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable

from flbench.messages import counted
from flbench.progress import Progress


def notebook_bar() -> Callable[[Progress], None]:
    """Return a function that shows progress in the cell of a notebook; outside of notebooks it shows nothing."""
    if "IPython" not in sys.modules:
        return lambda progress: None
    from rich.console import Console

    return _Bar().show if Console().is_jupyter else lambda progress: None


class _Bar:
    """The bar of one cell."""

    def __init__(self) -> None:
        from IPython.display import display

        self._display, self._handle = display, None

    def show(self, progress: Progress) -> None:
        """Draw the bar, in place of the one before."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        drawn = Table.grid(padding=(0, 1, 0, 0))
        drawn.add_row(ProgressBar(total=1, completed=progress.share, width=40), line(progress))
        if self._handle is None:
            self._handle = self._display(drawn, display_id=True)
        else:
            self._handle.update(drawn)


def line(progress: Progress) -> str:
    """Return progress in words: rounds of a single run, runs of several, and the remaining time."""
    rounds = [f"round {seen.round}/{seen.rounds}" for seen in progress.active if progress.total == 1]
    parts = rounds or [f"{progress.done}/{counted(progress.total, 'run')}"]
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [progress.more] if progress.more else []
    if progress.stopping:
        parts += ["stopping after this round"]
    elif progress.eta is not None and not progress.finished:
        parts += [f"{datetime.timedelta(seconds=round(progress.eta))} left"]
    return ", ".join(parts)
