"""The first table of a leaderboard: every row over all columns, or over those of each section."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell
from flbench.report.stats import interval_across
from flbench.report.tables import MAX_COLUMNS, Table
from flbench.report.ticks import Tick, place_label
from flbench.sweeps.layout import Layout


@dataclass(frozen=True)
class OverallRow:
    """A row over some columns."""

    row: tuple[Tick, ...]  # the place on each row axis
    personal: bool  # whether parts of the model stay on the clients
    complete: int  # columns in which all of its seeds have a value
    mean: float | None  # mean over columns of the mean over seeds; None unless it is complete in every column
    interval: tuple[float, float] | None  # of that mean, over seeds and test images
    rank: float | None  # mean rank among the rows that are complete in every column
    best: int  # columns in which it is the best or tied with it


@dataclass(frozen=True)
class Overall:
    """The rows over some columns."""

    row_axes: tuple[str, ...]  # the fields of the rows
    columns: tuple[str, ...]  # names of the columns
    rows: tuple[OverallRow, ...]  # the best first
    metric: str  # of the values
    ranked: int  # number of rows that are complete in every column
    title: str = ""  # the section of the columns; empty for all sections


def overalls(sections: Sequence[tuple[str, Layout, Sequence[Table]]]) -> tuple[Overall, ...]:
    """Return one table over all columns, or one a section where layouts differ or there are many columns."""
    named = [(title, tables) for title, _, tables in sections]
    if len({layout for _, layout, _ in sections}) == 1:
        whole = _overall(named)
        if len(sections) == 1 or whole is None or len(whole.columns) <= MAX_COLUMNS:
            return (whole,) if whole is not None else ()
    each = ((title, _overall([(title, tables)])) for title, tables in named)
    return tuple(dataclasses.replace(found, title=title) for title, found in each if found is not None)


def _overall(sections: Sequence[tuple[str, Sequence[Table]]]) -> Overall | None:
    """Return the rows over the columns of all tables with the kind and row axes of the first; None without tables."""
    import pandas as pd

    first = next((table for _, tables in sections for table in tables), None)
    if first is None:
        return None
    columns: list[str] = []
    rows: dict[tuple[Tick, ...], dict[int, Cell]] = {}
    for title, table in ((title, table) for title, tables in sections for table in tables):
        if (table.kind, table.row_axes) == (first.kind, first.row_axes):
            for (r, c), cell in table.cells.items():
                rows.setdefault(table.rows[r], {})[len(columns) + c] = cell
            for col in table.cols:
                parts = [title if len(sections) > 1 else "", table.title, place_label(table.col_axes, col)]
                columns.append(", ".join(filter(None, parts)) or METRICS[table.metric].title)
    means = [
        {c: cell.summary.mean for c, cell in cells.items() if cell.complete and cell.summary} for cells in rows.values()
    ]
    sign = 1 if METRICS[first.metric].lower_is_better else -1
    full = pd.DataFrame(means, columns=range(len(columns))).dropna()
    ranks = (sign * full).rank().mean(axis=1).to_dict() if len(full) > 1 else {}
    found = []
    for number, (row, cells) in enumerate(rows.items()):
        is_full = number in full.index
        images = min((cell.images for cell in cells.values() if cell.images), default=None)
        found.append(
            OverallRow(
                row=row,
                personal=any(cell.personal for cell in cells.values()),
                complete=len(means[number]),
                mean=fmean(means[number].values()) if is_full else None,
                interval=interval_across([cell.by_seed for cell in cells.values()], images) if is_full else None,
                rank=ranks.get(number),
                best=sum(cell.is_best or cell.is_tied for cell in cells.values()),
            )
        )
    found.sort(key=lambda one: (one.rank or math.inf, one.mean is None, sign * (one.mean or 0), -one.complete, one.row))
    return Overall(first.row_axes, tuple(columns), tuple(found), first.metric, len(full))
