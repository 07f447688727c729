"""The sharpness papers (Karakida et al. 2019, 2021) as part of a report."""

from __future__ import annotations

from flbench.papers.sharpness.chapter import chapter
from flbench.papers.sharpness.figures import sharpness
from flbench.report.figures.drawing import FigureKind
from flbench.report.paper import Paper

SHARPNESS = Paper(
    chapters={"sharpness": chapter},
    figures=(FigureKind("sharpness", "lambda_max over the width, and losses over width and learning rate", sharpness),),
)
