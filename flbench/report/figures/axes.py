"""Over a number that a sweep varies: the learning rate (figure 7 of Zhang et al. 2024), Dirichlet's beta (figure 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flbench.metric_specs import METRICS
from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, grouped
from flbench.report.figures.drawing import FIGURES, Drawing, file_name
from flbench.report.figures.rows import lacking_text, leading, shown_text, spread_text
from flbench.report.figures.style import (
    LineStyle,
    is_lowest,
    legend,
    limit_values,
    metric_label,
    named,
    panels,
    plot_mean,
    row_styles,
    scale_of,
    set_panel_title,
    set_title,
)
from flbench.report.tables import Table, axes_for
from flbench.report.ticks import place_label
from flbench.report.wording import in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Fewer values than this make no line.
FEWEST = 3

#: Of more betas the powers of ten alone are ticks.
_MOST_TICKS = 6


@FIGURES.register(
    "lr", "the metric over the learning rate", requires="at least three rates, all trained to the end", order=20
)
def over_lr(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a section: the metric over the learning rate, a panel a column, a line a row."""
    for section in board.sections:
        cells = federated(section.tables)
        over = "over the learning rate of local SGD"
        yield from _draw(section, cells, "lr", "lr", lambda cell: cell.experiment.lr, "learning rate", over)


@FIGURES.register("dirichlet", "the metric over Dirichlet's beta", requires="at least three values", order=30)
def over_beta(board: Leaderboard) -> Iterator[Drawing]:
    """Draw one figure a section: the metric over Dirichlet's beta; the iid partition, if there is one, at its end."""
    for section in board.sections:
        cells = federated(section.details)
        betas = sorted({beta for cell in cells if (beta := _beta(cell)) not in (None, math.inf)})
        if not betas:
            continue
        end = 10 * betas[-1]
        skewed = [cell for cell in cells if _beta(cell) is not None]
        label, over = "Dirichlet's β (left: strong label skew)", "over Dirichlet's beta"
        number = partial(_beta, iid=end)
        for drawing in _draw(section, skewed, "dirichlet", "partition", number, label, over):
            decades = [beta for beta in betas if math.log10(beta).is_integer()]
            ticks = {beta: f"{beta:g}" for beta in (betas if len(betas) <= _MOST_TICKS else decades)}
            if any(_beta(cell) == math.inf for cell in skewed):
                ticks[end] = "iid"
            for panel in drawing.figure.axes:
                panel.set_xticks(list(ticks), list(ticks.values()))
                panel.minorticks_off()
            yield drawing


def federated(tables: Iterable[Table]) -> list[Cell]:
    """Return the cells of the tables of federated training, row by row."""
    return [cell for table in tables if table.kind == "federated" for cell in table.cells.values()]


def _beta(cell: Cell, iid: float = math.inf) -> Any:
    """Return Dirichlet's beta, ``iid`` for the partition that it converges to; None for other partitions."""
    partition: Any = getattr(cell.experiment, "partition", None)
    if partition is None or partition.name not in ("dirichlet", "iid"):
        return None
    return iid if partition.name == "iid" else float(partition.beta)


def _draw(
    section: Section,
    cells: Sequence[Cell],
    kind: str,
    axis: str,
    number: Callable[[Cell], float],
    label: str,
    over: str,
) -> Iterator[Drawing]:
    """Draw the figure of an axis, if some row has values enough for a line; a search leaves too few of them."""
    if not any(cell.values for cell in cells) or any(cell.dropped is not None for cell in cells):
        return
    axes = axes_for(cells, section.layout, [axis, *(section.chosen if any(cell.chosen for cell in cells) else ())])
    columns = [
        column
        for column in grouped(cells, axes.col)
        if max(len({number(cell) for cell in line}) for line in grouped(column, axes.row)) >= FEWEST
    ]
    lines = [line for column in columns for line in grouped(column, axes.row)]
    if not axes.rows or not lines:
        return
    rows = leading([(axes.row(line[0]), line[0], _best(line)) for line in lines], section.layout)
    styles = row_styles(rows, axes.rows)
    metric = cells[0].metric
    figure, shown = panels(len(columns), sharex=True, sharey=True)
    for panel, column in zip(shown, columns, strict=True):
        for line in grouped([cell for cell in column if axes.row(cell) in styles], axes.row):
            _draw_line(panel, line, number, styles[axes.row(line[0])])
        set_panel_title(panel, in_words(place_label(axes.cols, axes.col(column[0]))))
        panel.set_xscale("log")
        limit_values(panel, metric)
        if is_lowest(panel):
            panel.set_xlabel(label)
    figure.supylabel(metric_label(metric), fontsize="medium")
    spread = spread_text(cells)
    spread += "" if all(cell.complete for cell in cells) else "; ×: cells that lack seeds"
    lacking = lacking_text(rows, [set(map(axes.row, one)) for one in columns])
    if any(len({number(cell) for cell in line}) == 1 for line in lines if axes.row(line[0]) in styles):
        lacking += "; points alone: other values not run"
    set_title(figure, f"{section.words}: {spread}{lacking}")
    legend(figure, named(styles, axes.rows))
    caption = f"{section.words}: {metric_label(metric)} {over}, {spread}."
    caption += shown_text(len(rows), len({axes.row(cell) for cell in cells}))
    yield Drawing(file_name(kind, section.title), caption, figure, section.place)


def _best(cells: Sequence[Cell]) -> float | None:
    """The best mean of complete cells."""
    means = [cell.summary.mean for cell in cells if cell.complete and cell.summary]
    return METRICS[cells[0].metric].best(means) if means else None


def _draw_line(panel: Axes, cells: Sequence[Cell], number: Callable[[Cell], float], style: LineStyle) -> None:
    """Draw complete cells as a line with a band; an incomplete cell breaks it and has a cross at the bottom."""
    ordered = sorted(cells, key=number)
    full = [cell.summary if cell.complete else None for cell in ordered]
    means, sds = [one.mean if one else math.nan for one in full], [one.sd if one else None for one in full]
    plot_mean(panel, [number(cell) for cell in ordered], means, sds, style, scale=scale_of(cells[0].metric))
    lacking = [number(cell) for cell in ordered if not cell.complete]
    bottom = panel.get_xaxis_transform()
    panel.plot(lacking, [0.015] * len(lacking), "x", color=style["color"], markersize=4, transform=bottom)
