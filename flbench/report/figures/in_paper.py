"""Figures at the size that they have in a paper, where the caption has their title."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flbench.report.figures.drawing import Drawing
from flbench.report.figures.style import PAPER, SHRINK, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

#: How wide a figure is in a paper.
Width = Literal["column", "page"]

#: Inches of a column, and of a page with two columns.
COLUMN, PAGE = 3.3, 6.9


def fit(drawing: Drawing) -> Width:
    """Give a drawing in the style ``PAPER`` its size in a paper, and remove its title.

    Returns:
        Its width: a column's for panels below each other, else that of a page with two columns. Heights shrink as text
        does. Figures that are cut to what is drawn keep their size: LaTeX scales them.
    """
    figure = drawing.figure
    if drawing.tight:
        return "page"
    height = figure.get_figheight()
    grids = (spec.get_gridspec() for one in figure.axes if (spec := one.get_subplotspec()) is not None)
    is_narrow = max((grid.ncols for grid in grids), default=1) == 1
    figure.suptitle("")
    figure.set_size_inches(COLUMN if is_narrow else PAGE, height * SHRINK)
    _fit_texts(drawing)
    return "column" if is_narrow else "page"


def _fit_texts(drawing: Drawing) -> None:
    """Break titles of panels that would reach into their neighbours, and legends that are wider than the figure."""
    figure = drawing.figure
    figure.draw_without_rendering()
    for panel in figure.axes:
        panel.title.set_fontsize(min(panel.title.get_fontsize(), PAPER["font.size"]))
        inches = panel.get_window_extent().width / figure.dpi
        panel.set_title(wrapped(panel.get_title().replace(r"\$", "$"), inches, panel.title.get_fontsize()))
    for legend in list(figure.legends):
        _fit_legend(figure, legend)
    figure.draw_without_rendering()


def _fit_legend(figure: Figure, legend: Legend) -> None:
    """Replace a legend that is wider than the figure by one below the panels with fewer columns."""
    handles = [handle for handle in legend.legend_handles if handle is not None]
    names = [text.get_text() for text in legend.get_texts()]
    for across in (3, 2, 1):
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()
        legend = figure.legend(handles, names, loc="outside lower center", ncols=across)
        figure.draw_without_rendering()
