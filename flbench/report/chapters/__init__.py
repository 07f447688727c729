"""The chapters of a report about studies: one a kind, each with tables, figures, and a verdict on every claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flbench.report.chapters import deep, rank, sharpness
from flbench.report.chapters.chapter import Chapter, Claim, Holding
from flbench.report.frames import Collection, Run

__all__ = ["Chapter", "Claim", "Holding", "chapters_of"]

_CHAPTERS: Mapping[str, Callable[[Sequence[Run], Collection], Chapter]] = {
    "sharpness": sharpness.chapter,
    "rank": rank.chapter,
    "deep": deep.chapter,
}


def chapters_of(collection: Collection) -> tuple[Chapter, ...]:
    """A chapter for each kind of study among the runs."""
    found = []
    for kind, write in _CHAPTERS.items():
        if runs := [run for run in collection.runs if run.experiment.kind == kind]:
            found.append(write(runs, collection))
    return tuple(found)
