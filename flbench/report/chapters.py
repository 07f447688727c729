"""The chapters of a report about studies: one a kind, each with tables, figures, and a verdict on every claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flbench.papers.rank_collapse import chapter as rank
from flbench.papers.rank_collapse import chapter_training as deep
from flbench.papers.sharpness import chapter as sharpness
from flbench.report.claims import Chapter, Claim, Holding
from flbench.report.runs import Collection, Run

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
