"""From a store or exported files to tables and figures; pandas and matplotlib are imported only where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flbench.report.leaderboard import Leaderboard
    from flbench.store import Store
    from flbench.sweeps import Sweep


def write_leaderboard(store: Store, sweeps: Sequence[Sweep], path: Path) -> Leaderboard:
    """Build the leaderboard of what ``sweeps`` wish for from ``store`` and write it to ``path`` as Markdown."""
    from flbench.report import frames, leaderboard

    options = leaderboard.options_of(sweeps)
    wishes = [experiment for sweep in sweeps for experiment in sweep.experiments]
    collection = frames.collect(frames.StoreSource(store), wishes, select_by=options.select_by, metric=options.metric)
    board = leaderboard.build(collection, options)
    write_text(path, board.markdown())
    return board


def write_text(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step, so that a reader never sees half of it."""
    from flbench.store import files

    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode(), sync=False)
