"""Figures of studies of kind ``sharpness``: content and captions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from flbench.papers.sharpness.figures import apart, cell_edges
from flbench.report.figures.drawing import Drawing
from tests.papers.in_memory import Memory
from tests.papers.sharpness.test_learning_rate import centred, descend, wall
from tests.papers.sharpness.test_width import CONSTANTS, add_draws, bound, theory
from tests.report.stores import leaderboard_of, write_figures


def panels(drawing: Drawing) -> list[Any]:
    return [panel for panel in drawing.figure.axes if panel.axison and panel.get_title()]


def test_a_single_width_has_no_figure(store: Memory) -> None:
    add_draws(store, theory, widths=(50,))
    assert store.drawings("sharpness") == []


def test_lambda_max_over_the_width(store: Memory) -> None:
    for activation in ("relu", "tanh"):
        add_draws(store, theory, activation=activation)
    add_draws(store, lambda request: 3.6 * bound(request), normalized="mean-last")
    add_draws(store, lambda request: 0.5 * request.width, normalized="ln-all", outputs=10, more=CONSTANTS)
    (drawing,) = store.drawings("sharpness")
    assert drawing.place == ("study", "sharpness")
    assert "over 4 draws" in drawing.caption
    assert "dashed: theory" in drawing.caption
    relu, tanh, layered = panels(drawing)
    assert [panel.get_title() for panel in (relu, tanh, layered)] == [
        "ReLU (2, 0), L = 3, C = 1, T = M",
        "tanh (3, 0.64), L = 3, C = 1, T = M",
        "ReLU (2, 0), L = 3, C = 10, T = M",
    ]
    measured, line_of_theory, flat, lower = relu.lines
    assert list(measured.get_xdata()) == list(line_of_theory.get_xdata()) == [50, 100, 200, 400]
    assert list(measured.get_ydata()) == pytest.approx(list(line_of_theory.get_ydata()))
    assert list(lower.get_ydata()) == pytest.approx([2.3142914] * 4)
    assert list(flat.get_ydata()) == pytest.approx([3.6 * 2.3142914] * 4)
    assert sorted(text.get_text() for text in relu.texts) == ["$M^{0.00}$", "$M^{0.97}$"]
    (legend,) = drawing.figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [
        "no norm",
        "mean subtraction, last layer",
        "layer norm, all layers",
        "theory",
        "lower bound",
    ]


def test_losses_over_width_and_learning_rate(store: Memory) -> None:
    descend(store, wall)
    descend(store, centred, normalized="mean-last", lambda_max=lambda width: 30.0)
    (drawing,) = store.drawings("sharpness")
    titles = [panel.get_title().replace("\n", " ") for panel in panels(drawing)]
    assert titles == [
        "no norm: loss after the last step",
        "mean subtraction, last layer: loss after the last step",
        "no norm: loss at its highest",
        "mean subtraction, last layer: loss at its highest",
    ]
    (legend,) = drawing.figure.legends
    assert legend.get_texts()[-1].get_text() == "white: not run"
    panel = panels(drawing)[0]
    line, points = panel.lines
    assert list(line.get_ydata()) == pytest.approx([0.42797 / width for width in (100, 200, 400)], rel=1e-3)
    assert list(points.get_ydata())[:2] == pytest.approx([2 / 467, 2 / (1.1 * 467)])
    exploded = [patch for patch in panel.patches if patch.get_hatch()]
    assert len(exploded) == 3 * 2 * 6, "six factors above the line, of each network"
    assert len(panel.patches) == 3 * 2 * 9
    assert "hatched: half of them or more above 1000 or not finite" in drawing.caption
    assert "points: of each network as measured" in drawing.caption


@pytest.mark.slow
def test_descents_of_different_lengths_are_drawn_apart(store: Memory) -> None:
    for width, steps in ((100, 50), (200, 20)):
        descend(store, wall, widths=(width,), factors=(0.5, 2), steps=steps)
    names = [drawing.name for drawing in store.drawings("sharpness")]
    assert [name.removeprefix("sharpness-losses-ReLU-4-1-L-3-C-1-T-1000-") for name in names] == [
        "20-steps",
        "50-steps",
    ]


def test_spectra(store: Memory) -> None:
    for normalized, values in (("none", [140.0, 3.0, 2.0, 1e-13]), ("mean-last", [8.0, 3.0, 2.0, 1e-13])):
        add_draws(
            store, lambda request: 1.0, widths=(200,), normalized=normalized, spectrum=True, more={"spectrum": values}
        )
    (drawing,) = store.drawings("sharpness")
    plain, centred_ = panels(drawing)
    assert [plain.get_title(), centred_.get_title()] == ["no norm", "mean subtraction, last layer"]
    assert sum(bar.get_height() for bar in plain.patches) == pytest.approx(3), "of a draw, without rounding's"
    assert plain.lines[0].get_xdata()[0] == pytest.approx(139.455, rel=1e-4)
    assert "mean over 4 draws" in drawing.caption


@pytest.mark.slow
def test_figures_are_written_and_linked_with_their_chapter(store: Memory, tmp_path: Path) -> None:
    add_draws(store, theory)
    descend(store, wall, widths=(100,), factors=(0.5, 2))
    pictures = write_figures(leaderboard_of(store.collection()), tmp_path)
    assert [picture.svg.name for picture in pictures] == [
        "sharpness-width.svg",
        "sharpness-losses-ReLU-4-1-L-3-C-1-T-1000-50-steps.svg",
    ]
    for picture in pictures:
        assert imread(picture.svg.with_suffix(".png")).std() > 0.05
        assert picture.place == ("study", "sharpness")


def test_labels_are_moved_apart_around_their_middle() -> None:
    assert apart([0.1, 0.5], 0.1) == [0.1, 0.5]
    assert apart([0.5, 0.52], 0.1) == pytest.approx([0.46, 0.56])
    assert apart([0.4, 0.5, 0.51, 0.9], 0.1) == pytest.approx([0.37, 0.47, 0.57, 0.9])
    assert apart([], 0.1) == []


def test_cells_end_halfway_between_their_neighbours() -> None:
    assert cell_edges([100, 200, 400]) == pytest.approx(
        [100 / math.sqrt(2), 100 * math.sqrt(2), 200 * math.sqrt(2), 400 * math.sqrt(2)]
    )
    assert len(cell_edges([100])) == 2
