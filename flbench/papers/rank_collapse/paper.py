"""The rank-collapse paper (Daneshmand et al. 2020) as part of a report."""

from __future__ import annotations

from flbench.papers.rank_collapse.chapter import deep_chapter, rank_chapter
from flbench.papers.rank_collapse.figures import deep, rank
from flbench.report.figures.drawing import FigureKind
from flbench.report.paper import Paper

RANK_COLLAPSE = Paper(
    chapters={"rank": rank_chapter, "deep": deep_chapter},
    figures=(
        FigureKind("rank", "ranks over the depth of random networks", rank),
        FigureKind("deep", "ranks and accuracy of deep networks over depth and epochs", deep),
    ),
)
