"""What a paper adds to reports: chapters about its studies, figures, and parts of the document.

The report imports no paper: its callers pass the papers (``flbench.papers.papers``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flbench.errors import UserError
from flbench.report.board import Section
from flbench.report.claims import Chapter
from flbench.report.figures.drawing import FIGURES, FigureKind
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
    """Return the general kinds of figures and those of papers by name, in the order of a report.

    Raises:
        UserError: a plug-in has a figure with the name of a paper's, or raises an error.
    """
    of_papers = {kind.name: kind for paper in papers for kind in paper.figures}
    if taken := sorted(of_papers.keys() & FIGURES.keys()):
        raise UserError(f"the figure {taken[0]!r} of a plug-in has the name of one of flbench; give it another name")
    kinds = [*FIGURES.values(), *of_papers.values()]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.order)}
