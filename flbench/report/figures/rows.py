"""The rows of figures with lines, at most eight of them, and the text that says what the bands are."""

from __future__ import annotations

from collections.abc import Container, Iterable

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell
from flbench.report.headline import AnyRow, in_order
from flbench.report.planned import is_named
from flbench.sweeps.layout import Layout

#: Most lines of a panel.
MOST_LINES = 8


def leading(found: Iterable[tuple[AnyRow, Cell, float | None]], layout: Layout) -> list[AnyRow]:
    """Return the rows that a figure shows, in order: all, or the baseline, those of planned comparisons and the best.

    Args:
        found: for each line its row, one of its cells and its value, if it has one; a row has a line in each panel.
        layout: names the baseline and the planned comparisons.

    Returns:
        At most ``MOST_LINES`` rows. Those with values in more panels are better, then those with the better mean.
    """
    sign = 1 if METRICS[layout.metric].lower_is_better else -1
    scores: dict[AnyRow, list[float]] = {}
    cells: dict[AnyRow, Cell] = {}
    for row, cell, value in found:
        cells.setdefault(row, cell)
        scores.setdefault(row, []).extend([] if value is None else [sign * value])
    is_baseline = layout.is_baseline_but_for()
    baselines = {row for row, cell in cells.items() if is_baseline(cell.experiment)}
    is_planned = is_named(cells.values(), layout)
    planned = {row for row, cell in cells.items() if is_planned(cell)}
    return sorted(in_order(scores, baselines, planned)[:MOST_LINES])


def shown_text(shown: int, rows: int) -> str:
    """Return what a caption says of the rows that are left out; empty if there are none."""
    return f" {shown} of {rows} rows: the baseline, those of planned comparisons, and the best." if shown < rows else ""


def lacking_text(rows: Iterable[AnyRow], panels: Iterable[Container[AnyRow]]) -> str:
    """Return what a title says where a panel lacks a row: ``; rows without a line: not run``; else nothing."""
    every, known = list(rows), list(panels)
    return "" if all(row in panel for row in every for panel in known) else "; rows without a line: not run"


def spread_text(cells: Iterable[Cell]) -> str:
    """Return what lines and bands show: ``mean ± sd over seeds``, or ``one seed`` where no cell has more."""
    several = {len(cell.values) > 1 for cell in cells if cell.values}
    if several == {True, False}:
        return "mean over seeds, ± sd where there are several"
    return "mean ± sd over seeds" if True in several else "one seed"
