"""From a store or exported files to tables and figures; pandas and matplotlib are imported only where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flbench.report.leaderboard import Leaderboard
    from flbench.store import Store
    from flbench.sweep import Sweep


def write_leaderboard(store: Store, sweeps: Sequence[Sweep], path: Path) -> Leaderboard:
    """Build the leaderboard of what ``sweeps`` wish for from ``store`` and write it to ``path`` as Markdown."""
    from flbench.report import frames, leaderboard, render

    options = leaderboard.options_of(sweeps)
    wishes = [experiment for sweep in sweeps for experiment in sweep.experiments]
    collection = frames.collect(frames.StoreSource(store), wishes, select_by=options.select_by)
    board = leaderboard.build(collection, options)
    render.write_text(path, board.markdown())
    return board
