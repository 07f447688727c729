"""The chapter about studies of kind ``rank``."""

from __future__ import annotations

from collections.abc import Sequence

from flbench.report.chapters.chapter import Chapter
from flbench.report.frames import Collection, Run


def chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """What the runs say."""
    return Chapter("rank", "Ranks over depth", "", (), (), tuple(runs))
