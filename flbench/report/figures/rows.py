"""Which rows a figure of lines shows (of more than eight, lines cannot be told apart), and what its bands are."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any, TypeVar

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell
from flbench.report.planned import is_named
from flbench.report.tables import Layout
from flbench.sweeps import condition

#: Most lines of a panel.
MOST_LINES = 8

#: A row, mostly its place on the row axes.
Row = TypeVar("Row", bound="tuple[Any, ...]")


def leading(found: Iterable[tuple[Row, Cell, float | None]], layout: Layout) -> list[Row]:
    """Return the rows that a figure shows, in order: all, or the baseline, those of planned comparisons and the best.

    Args:
        found: for each line its row, one of its cells and its value, if it has one; a row has a line in each panel.
        layout: names the baseline and the planned comparisons.

    Returns:
        At most ``MOST_LINES`` rows. Those with values in more panels are better, then those with the better mean.
    """
    values: dict[Row, list[float]] = {}
    cells: dict[Row, Cell] = {}
    for row, cell, value in found:
        cells.setdefault(row, cell)
        values.setdefault(row, []).extend([] if value is None else [value])
    sign = 1 if METRICS[layout.metric].lower_is_better else -1
    is_baseline = condition(layout.baseline)

    def order(row: Row) -> tuple[bool, bool, int, float, Row]:
        experiment, known = cells[row].experiment, values[row]
        named = is_named(experiment, layout)
        return not is_baseline(experiment), not named, -len(known), sign * fmean(known) if known else 0.0, row

    return sorted(sorted(values, key=order)[:MOST_LINES])


def shown_text(shown: int, rows: int) -> str:
    """Return what a caption says of the rows that are left out; empty if there are none."""
    return f" {shown} of {rows} rows: the baseline, those of planned comparisons, and the best." if shown < rows else ""


def spread_text(cells: Iterable[Cell]) -> str:
    """Return what lines and bands show: ``mean ± sd over seeds``, or ``one seed`` where no cell has more."""
    return "mean ± sd over seeds" if any(len(cell.values) > 1 for cell in cells) else "one seed"
