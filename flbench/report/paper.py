"""What a paper adds to reports: chapters about its studies, figures, and parts of the document.

The report imports no paper: its callers pass the papers (``flbench.papers.papers``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flbench.report.board import Section
from flbench.report.claims import Chapter
from flbench.report.figures.drawing import FigureKind
from flbench.report.figures.kinds import GENERAL
from flbench.report.runs import Collection, Run
from flbench.report.supplement import Supplement


@dataclass(frozen=True)
class Paper:
    """A paper that the report compares runs with.

    Attributes:
        chapters: by the kind of experiment, the function that turns its runs into a chapter.
        figures: kinds of figures.
        supplement: what the paper adds to the document of some sections, if anything.
    """

    chapters: Mapping[str, Callable[[Sequence[Run], Collection], Chapter]] = field(default_factory=dict)
    figures: tuple[FigureKind, ...] = ()
    supplement: Callable[[Sequence[Section], Collection], Supplement] | None = None


def figure_kinds(papers: Sequence[Paper]) -> Mapping[str, FigureKind]:
    """Return the general kinds of figures and those of papers by name, in the order of a report."""
    kinds = [*GENERAL, *(kind for paper in papers for kind in paper.figures)]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.order)}
