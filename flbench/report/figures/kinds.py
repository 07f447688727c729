"""The kinds of figures that belong to no paper, and how figures of any kind are drawn and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flbench.report.board import Leaderboard, Picture
from flbench.report.figures import axes, budget, cost, curves, gains, heatmap, label_counts, overview, phase
from flbench.report.figures.drawing import Drawing, FigureKind, save
from flbench.report.figures.style import STYLE, matplotlib_style

#: The kinds that belong to no paper.
GENERAL = (
    FigureKind(
        "overview",
        "planned comparisons of the first page, of all sections",
        overview.overview,
        order=3,
        on_first_page=True,
    ),
    FigureKind("gains", "planned comparisons with their intervals", gains.gains, order=4, on_first_page=True),
    FigureKind(
        "phase", "the gain of planned comparisons over two axes of columns", phase.phase, order=5, on_first_page=True
    ),
    FigureKind(
        "budget", "the expected value over the number of tried settings", budget.budget, order=6, on_first_page=True
    ),
    FigureKind("curves", "the metric over rounds, with bands", curves.over_rounds, order=10),
    FigureKind("lr", "the metric over the learning rate", axes.over_lr, order=20),
    FigureKind("dirichlet", "the metric over Dirichlet's beta", axes.over_beta, order=30),
    FigureKind("data", "centralized and federated training over the samples seen", curves.over_data, order=40),
    FigureKind("heatmap", "method x norm as colours", heatmap.heatmap, order=50),
    FigureKind("cost", "bytes until the target", cost.cost, order=70),
    FigureKind(
        "labels", "samples of each class that each client holds", label_counts.labels, order=80, reads_data=True
    ),
)


def draw(board: Leaderboard, kind: FigureKind, data_root: Path | None = None, style: Any = STYLE) -> Iterator[Drawing]:
    """Draw the figures of one kind; ``data_root`` is the folder of the data sets (None: the usual one)."""
    drawings = kind.draw(board, data_root) if kind.reads_data else kind.draw(board)
    with matplotlib_style(style):
        for drawing in drawings:
            # The first layout uses the sizes of titles and labels before it: a second one keeps titles apart.
            drawing.figure.draw_without_rendering()
            yield drawing


def write_figures(
    board: Leaderboard, directory: Path, kinds: Iterable[FigureKind], data_root: Path | None = None
) -> tuple[Picture, ...]:
    """Draw the kinds that the runs support as SVG and PNG into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    for kind in kinds:
        for drawing in draw(board, kind, data_root):
            svg, _ = save(drawing, directory)
            pictures.append(Picture(kind.name, drawing.caption, svg, drawing.place, kind.on_first_page))
    return tuple(pictures)
