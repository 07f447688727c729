"""Figures of studies of kind ``sharpness``: figures 1 and 2 of the sharpness paper, and spectra."""

from __future__ import annotations

from collections.abc import Iterator

from flbench.papers.sharpness.figure1 import over_width
from flbench.papers.sharpness.figure2 import losses
from flbench.papers.sharpness.figure_spectrum import spectra
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing


def sharpness(board: Leaderboard) -> Iterator[Drawing]:
    """What the runs support."""
    runs = [run for run in board.collection.runs if run.experiment.kind == "sharpness"]
    yield from over_width(runs)
    yield from losses(runs, board.collection)
    yield from spectra(runs)
