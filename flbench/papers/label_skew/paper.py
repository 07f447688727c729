"""The label-skew paper (Zhang et al. 2024, arXiv 2308.09565v2) as part of a report."""

from __future__ import annotations

from collections.abc import Sequence

from flbench.config import Training
from flbench.papers.label_skew import figures, figures_one_class
from flbench.papers.label_skew.chapter import synthesize
from flbench.papers.label_skew.claims_published import TOLERANCE, compare
from flbench.papers.label_skew.supplement import LabelSkewSupplement
from flbench.report.board import Section
from flbench.report.figures.drawing import FigureKind
from flbench.report.paper import Paper
from flbench.report.runs import Collection

FIGURES = (
    FigureKind("published", "ours against the published numbers", figures.published, order=60),
    FigureKind("why", "accuracy against the rank and growth of features, and against sharpness", figures.why),
    FigureKind("overfit", "class accuracies before and after local steps on one client", figures_one_class.overfit),
    FigureKind("features", "the features' norms and singular values over rounds", figures_one_class.features),
)


def label_skew(*, published: bool = False, tolerance: float = TOLERANCE, why: bool = False) -> Paper:
    """Return the paper as part of a report.

    Args:
        published: whether numbers that no run belongs to are listed as well.
        tolerance: what a reproduced number may differ by, in percentage points.
        why: whether the report has the chapter "Why".
    """

    def supplement(sections: Sequence[Section], collection: Collection) -> LabelSkewSupplement:
        training = [run for run in collection.runs if isinstance(run.experiment, Training)]
        return LabelSkewSupplement(
            published=compare(training, tolerance=tolerance, everything=published),
            why=synthesize(sections, collection) if why else None,
        )

    return Paper(figures=FIGURES, supplement=supplement)
