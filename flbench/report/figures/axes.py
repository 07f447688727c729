"""Over a number that a sweep varies: the learning rate (figure 7 of Zhang et al. 2024), Dirichlet's beta (figure 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flbench.report.board import Leaderboard, Section
from flbench.report.cells import Cell, grouped
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    BAND,
    PANEL,
    Look,
    entitle,
    legend,
    looks,
    metric_label,
    name_panel,
    panels,
    place_name,
    scale_of,
)
from flbench.report.layout import axes_for
from flbench.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Fewer values than this make no line.
FEWEST = 3


def over_lr(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a section: the metric over the learning rate, a panel a column, a line a row."""
    for section in board.sections:
        cells = _federated(section.tables)
        drawn = _draw(section, cells, "lr", _rate, "learning rate", "over the learning rate of local SGD")
        yield from drawn


def over_beta(board: Leaderboard) -> Iterator[Drawing]:
    """One figure a section: the metric over Dirichlet's beta; at its end the iid partition, where there is one."""
    for section in board.sections:
        cells = _federated([details.table for details in section.details])
        betas = [beta for cell in cells if (beta := _beta(cell)) is not None]
        if not betas:
            continue
        end = 10 * max(betas)
        skewed = [cell for cell in cells if _beta_or(cell, end) is not None]
        label = "Dirichlet's β (left: strong label skew)"
        beta_of = partial(_beta_or, iid=end)
        for drawing in _draw(section, skewed, "partition", beta_of, label, "over Dirichlet's beta", "dirichlet"):
            if len(skewed) > len(betas):
                _name_last_tick(drawing, sorted({*betas, end}))
            yield drawing


def _federated(tables: Sequence[Table]) -> list[Cell]:
    return [cell for table in tables if table.kind == "federated" for _, cell in sorted(table.cells.items())]


def _rate(cell: Cell) -> float | None:
    return cell.training.lr


def _beta(cell: Cell) -> float | None:
    partition: Any = getattr(cell.experiment, "partition", None)
    return float(partition.beta) if partition is not None and partition.name == "dirichlet" else None


def _beta_or(cell: Cell, iid: float) -> float | None:
    """Dirichlet's beta, and ``iid`` for the partition to which it leads."""
    partition: Any = getattr(cell.experiment, "partition", None)
    return iid if partition is not None and partition.name == "iid" else _beta(cell)


def _name_last_tick(drawing: Drawing, places: Sequence[float]) -> None:
    """A tick at every tenfold beta, and one with the name of the iid partition."""
    decades = [beta for beta in places[:-1] if math.log10(beta).is_integer()]
    for panel in drawing.figure.axes:
        panel.set_xticks([*decades, places[-1]], [*(f"{beta:g}" for beta in decades), "iid"])
        panel.minorticks_off()


def _draw(
    section: Section,
    cells: Sequence[Cell],
    axis: str,
    number: Callable[[Cell], float | None],
    label: str,
    over: str,
    kind: str | None = None,
) -> Iterator[Drawing]:
    """The figure, where some row of some panel has values enough."""
    if not cells:
        return
    place = axes_for(cells, section.layout, [axis, *(section.chosen if any(cell.chosen for cell in cells) else ())])
    groups = grouped(cells, place.col)
    if not place.rows or max(len({number(cell) for cell in group}) for group in groups) < FEWEST:
        return
    everyone = sorted({place.row(cell) for cell in cells})
    styles = dict(zip(everyone, looks(everyone), strict=True))
    metric = cells[0].metric
    figure, axes = panels(len(groups), sharex=True, sharey=True)
    for panel, group in zip(axes, groups, strict=True):
        for line in grouped(group, place.row):
            _draw_line(panel, line, number, styles[place.row(line[0])])
        name_panel(panel, place_name(place.cols, place.col(group[0])), PANEL[0])
        panel.set_xscale("log")
        if scale_of(metric) == 100:
            panel.set_ylim(-4, 101)
    figure.supxlabel(label, fontsize="medium")
    figure.supylabel(metric_label(metric), fontsize="medium")
    entitle(figure, f"{section.title}: mean ± sd over seeds; ×: cells that lack seeds")
    legend(figure, everyone, [styles[row] for row in everyone], place.rows)
    name = kind or axis
    caption = f"{section.title}: {metric_label(metric)} {over}, mean ± sd over seeds; ×: cells that lack seeds."
    yield Drawing(name, file_name(name, section.title), caption, figure, section.place)


def _draw_line(panel: Axes, cells: Sequence[Cell], number: Callable[[Cell], float | None], look: Look) -> None:
    """Complete cells as a line with a band; the others break it, and have a cross at the bottom."""
    found = ((x, cell) for cell in cells if (x := number(cell)) is not None)
    ordered = sorted(found, key=lambda pair: pair[0])
    scale = scale_of(cells[0].metric)
    at = [x for x, _ in ordered]
    full = [cell.summary if cell.complete else None for _, cell in ordered]
    panel.plot(at, [scale * one.mean if one else math.nan for one in full], **look)
    low, high = ([scale * (one.mean + sign * (one.sd or 0.0)) if one else math.nan for one in full] for sign in (-1, 1))
    panel.fill_between(at, low, high, color=look["color"], alpha=BAND, linewidth=0)
    lacking = [x for x, cell in ordered if not cell.complete]
    bottom = panel.get_xaxis_transform()
    panel.plot(lacking, [0.015] * len(lacking), "x", color=look["color"], markersize=4, transform=bottom)
