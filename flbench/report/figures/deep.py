"""Figures of studies of kind ``deep``."""

from __future__ import annotations

from collections.abc import Iterator

from flbench.report.figures.style import Drawing
from flbench.report.frames import Collection
from flbench.report.leaderboard import Leaderboard


def deep(board: Leaderboard, collection: Collection) -> Iterator[Drawing]:
    """What the runs support."""
    yield from ()
