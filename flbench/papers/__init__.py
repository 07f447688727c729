"""The papers that flbench tests: a folder for each with its claims, chapters, figures and published numbers."""

from __future__ import annotations

from collections.abc import Sequence

from flbench.config import Training
from flbench.papers.fedvls import claims as fedvls
from flbench.papers.label_skew import figures, figures_one_class, figures_sharpening
from flbench.papers.label_skew.chapter import synthesize
from flbench.papers.label_skew.claims_published import compare
from flbench.papers.label_skew.supplement import LabelSkewSupplement
from flbench.papers.niid_bench import claims as niid_bench
from flbench.papers.published_numbers import WIDEST
from flbench.papers.rank_collapse.chapter import deep_chapter, rank_chapter
from flbench.papers.rank_collapse.figures import deep, rank
from flbench.papers.sharpness.chapter import chapter as sharpness_chapter
from flbench.papers.sharpness.figures import sharpness
from flbench.report.board import Section
from flbench.report.figures.drawing import FigureKind
from flbench.report.paper import Paper
from flbench.report.runs import Collection

#: Karakida et al. 2019.
SHARPNESS = Paper(
    chapters={"sharpness": sharpness_chapter},
    figures=(
        FigureKind(
            "sharpness",
            "lambda_max over the width, losses over width and learning rate, spectra",
            sharpness,
            "studies of this kind",
        ),
    ),
)

#: Daneshmand et al. 2020.
RANK_COLLAPSE = Paper(
    chapters={"rank": rank_chapter, "deep": deep_chapter},
    figures=(
        FigureKind("rank", "ranks over the depth and width of random networks", rank, "studies of this kind"),
        FigureKind("deep", "ranks and accuracy of deep networks over depth and epochs", deep, "studies of this kind"),
    ),
)

#: Guo et al. 2025.
FEDVLS = Paper(supplement=lambda _, collection: fedvls.FedVlsSupplement(fedvls.compare(collection)))

#: Li et al. 2022.
NIID_BENCH = Paper(supplement=lambda _, collection: niid_bench.NiidBenchSupplement(niid_bench.compare(collection)))


def papers(*, published: bool = False, tolerance: float = WIDEST, why: bool = False) -> tuple[Paper, ...]:
    """Return every paper that a report compares runs with; the options are about the label-skew paper.

    Args:
        published: whether numbers that no run belongs to are listed as well.
        tolerance: widest reach, to either side, of an interval that shows agreement, in percentage points.
        why: whether the report has the chapter "Why".
    """

    def label_skew_supplement(sections: Sequence[Section], collection: Collection) -> LabelSkewSupplement:
        training = [run for run in collection.runs if isinstance(run.experiment, Training)]
        return LabelSkewSupplement(
            published=compare(training, widest=tolerance, everything=published),
            why=synthesize(sections, collection) if why else None,
        )

    # Zhang et al. 2024, arXiv 2308.09565v2.
    label_skew = Paper(
        figures=(
            FigureKind(
                "published", "ours against the published numbers", figures.published, "a run at a published setting", 60
            ),
            FigureKind(
                "sharpening",
                "the learning rate over 2 / lambda_max over rounds, mean and range over seeds",
                figures_sharpening.sharpening,
                "the probe `sharpness` along training",
            ),
            FigureKind(
                "features",
                "singular values, first share, norms of features and class embeddings over rounds",
                figures_one_class.features,
                "the probe `features`; local-only and the baseline",
            ),
        ),
        supplement=label_skew_supplement,
    )
    return label_skew, NIID_BENCH, FEDVLS, SHARPNESS, RANK_COLLAPSE
