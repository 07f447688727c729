"""Figures of accuracy: against the quantities that probes measured, and against the published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flbench.papers.label_skew.chapter import Synthesis, synthesize
from flbench.papers.label_skew.published import PublishedRow
from flbench.papers.label_skew.supplement import LabelSkewSupplement
from flbench.papers.published_numbers import Comparison, tally
from flbench.report.board import Leaderboard
from flbench.report.cells import tick_of
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.style import (
    COLORS,
    GREY,
    MARKERS,
    LineStyle,
    color_numbers,
    legend_of,
    line_style,
    metric_label,
    panels,
    scale_of,
    set_plain_numbers,
    set_title,
    spelled,
)
from flbench.report.stats import Summary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The quantity of each column of panels, with its label.
_COLUMNS = {
    "rank": "effective rank of the features",
    "growth": "feature norm at the end / at the start",
    "used": "lr / (2 / λ_max) at the end",
}

#: Norms with filled marks.
_FIRST = ("none", "ln", "fn")

#: A figure with more marks than this has them as a picture in each panel: as vectors they are megabytes.
_MOST_VECTORS = 3000


def why(board: Leaderboard) -> Iterator[Drawing]:
    """Draw a figure for each section with probes: a row of panels a partition, a mark a cell."""
    supplement = board.supplement(LabelSkewSupplement)
    known = supplement.why if supplement else None
    for found in synthesize(board.sections, board.collection) if known is None else known:
        cells = found.cells[found.cells.acc.notna() & ~found.cells.personal]
        columns = [name for name in _COLUMNS if cells[name].count() > 1]
        if columns:
            yield _why(found, cells, columns)


def _why(found: Synthesis, cells: pd.DataFrame, columns: Sequence[str]) -> Drawing:
    partitions, norms = _in_order(cells, "partition"), _in_order(cells, "norm")
    # The baseline's norm and those of the paper's methods come first and have filled marks.
    norms.sort(key=lambda norm: norm not in _FIRST)
    styles = {norm: _mark_style(place) for norm, place in color_numbers(norms).items()}
    across = len(columns)
    figure, shown = panels(len(partitions) * across, across=across, height=2.1, sharex="col", sharey=True)
    rows = [shown[first : first + across] for first in range(0, len(shown), across)]
    metric, is_dense = cells.cell.iloc[0].metric, len(cells) * len(columns) > _MOST_VECTORS
    limits = [_limits(cells[name]) for name in columns]
    for row, partition in zip(rows, partitions, strict=True):
        members = cells[cells.partition == partition]
        for panel, name, ends in zip(row, columns, limits, strict=True):
            _draw_panel(panel, members, name, ends, styles, scale_of(metric), is_dense=is_dense)
        row[0].set_ylabel(f"{partition}\n{metric_label(metric)}")
    for name, (low, high), column in zip(columns, limits, zip(*rows, strict=True), strict=True):
        column[-1].set_xlabel(_COLUMNS[name])
        column[-1].set_xscale("log")
        column[-1].set_xlim(low / 1.15, high * 1.15)
        set_plain_numbers(column[-1].xaxis)
        for panel in column if name == "used" else ():
            panel.axvline(1, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    _legend(figure, styles)
    set_title(figure, f"{found.title}: accuracy against probes; one mark per cell (mean over seeds)")
    caption = (
        f"{found.title}: {metric_label(metric)} of every cell (a method, norm, learning rate and number of local "
        "steps; mean over seeds) against the effective rank of the global model's features, the growth of their norms, "
        "and the learning rate over 2 / lambda_max at the end of training (dashed: 1, below which gradient descent is "
        "stable). One row of panels per partition; colours and marks show normalizations; the outermost twentieth of "
        "the marks is at the edges."
    )
    return Drawing(file_name("why", found.title), caption, figure, found.place, few_colors=is_dense)


def _in_order(cells: pd.DataFrame, axis: str) -> list[str]:
    """The labels on an axis in its order."""
    ticks = {tick_of(cell, axis) for cell in cells.cell}
    return ["all data" if tick.label == "–" else tick.label for tick in sorted(ticks)]


def _mark_style(place: int) -> LineStyle:
    """Return filled marks first, then hollow ones with other pairs of colour and mark."""
    turn = place // len(COLORS)
    color = COLORS[place % len(COLORS)]
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": "none" if turn else color, "edgecolor": color, "marker": marker, "linewidth": 0.8}


def _draw_panel(
    panel: Axes,
    cells: pd.DataFrame,
    name: str,
    ends: tuple[float, float],
    styles: Mapping[str, LineStyle],
    scale: int,
    *,
    is_dense: bool,
) -> None:
    for label, style in styles.items():
        shown = cells[(cells.norm == label) & (cells[name] > 0)]
        if len(shown):
            at, heights = shown[name].clip(*ends), scale * shown.acc
            panel.scatter(at, heights, s=13, alpha=0.75, zorder=2, rasterized=is_dense, **style)
    if scale == 100:
        panel.set_ylim(-4, 104)


def _limits(values: pd.Series[float]) -> tuple[float, float]:
    """Where the panels of a column end: all but the outermost twentieth of the values."""
    known = np.log(values[values > 0])
    low, high = np.exp(np.quantile(known, [0.025, 0.975])) if len(known) else (1.0, 1.0)
    return float(low), float(high)


def _legend(figure: Figure, styles: Mapping[str, LineStyle]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=look["marker"],
            markerfacecolor=look["color"],
            markeredgecolor=look["edgecolor"],
            markersize=5,
        )
        for look in styles.values()
    ]
    legend_of(figure, handles, [spelled(norm) for norm in styles])


def published(board: Leaderboard) -> Iterator[Drawing]:
    """Draw a figure for each data set and model: a point for each published number and ours, with its prediction."""
    supplement = board.supplement(LabelSkewSupplement)
    if supplement is None or supplement.published is None:
        return
    found = supplement.published
    places = dict.fromkeys(one.row.configuration.place for one in found.comparisons)
    for place in places:
        pairs = [
            (one, ours)
            for one in found.comparisons
            if one.row.configuration.place == place and (ours := one.ours) is not None
        ]
        if pairs:
            yield _published(place, pairs)


def _published(place: tuple[str, str], pairs: Sequence[tuple[Comparison[PublishedRow], Summary]]) -> Drawing:
    figure, (panel,) = panels(1, height=4.4)
    values = [value for one, ours in pairs for value in (one.row.value, 100 * ours.mean)]
    low, high = max(0.0, min(values) - 5), min(100.0, max(values) + 5)
    panel.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    norms = sorted({one.row.configuration.norm for one, _ in pairs}, key=lambda norm: (norm != "none", norm))
    for norm, number in color_numbers(norms).items():
        style = line_style(number)
        same = [pair for pair in pairs if pair[0].row.configuration.norm == norm]
        for nth, (one, ours) in enumerate(same):
            found = one.judgement.prediction
            panel.errorbar(
                one.row.value,
                100 * ours.mean,
                yerr=[[100 * (ours.mean - found.low)], [100 * (found.high - ours.mean)]] if found else None,
                color=style["color"],
                marker=style["marker"],
                markersize=5,
                markerfacecolor="none" if one.judgement.obstacle else style["color"],
                linestyle="none",
                elinewidth=0.8,
                label=spelled(norm) if nth == 0 else None,
            )
    panel.set(xlim=(low, high), ylim=(low, high), xlabel="published accuracy (%)", ylabel="ours (%)", aspect="equal")
    set_title(figure, f"{', '.join(place)}: ours against published")
    legend_of(figure, *panel.get_legend_handles_labels())
    rounds = sorted({one.cell.runs[0].rounds for one, _ in pairs if one.cell})
    caption = (
        f"{', '.join(place)}: our accuracy (after {' and '.join(f'{number:,}' for number in rounds)} rounds) "
        "against the published one, and the line of equality. Bars: the 95 % interval that our runs predict for the "
        "published number. Hollow: fewer rounds or other data. "
        f"{tally(one.judgement for one, _ in pairs)}."
    )
    return Drawing(file_name("published", *place), caption, figure, place)
