"""Figures of studies of kind ``sharpness``: figures 1 and 2 of the sharpness paper, and spectra."""

from __future__ import annotations

from collections.abc import Iterator

from flbench.papers.sharpness.figure1 import over_width
from flbench.papers.sharpness.figure2 import losses
from flbench.papers.sharpness.figure_spectrum import spectra
from flbench.report.figures.style import Drawing
from flbench.report.leaderboard import Leaderboard
from flbench.report.runs import Collection


def sharpness(board: Leaderboard, collection: Collection) -> Iterator[Drawing]:
    """What the runs support."""
    runs = [run for run in collection.runs if run.experiment.kind == "sharpness"]
    yield from over_width(runs)
    yield from losses(runs, collection)
    yield from spectra(runs)
