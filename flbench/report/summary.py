"""The first table of a leaderboard: every row over all columns, or over those of each section."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, summarize
from flbench.report.stats import interval_across
from flbench.report.tables import MAX_COLUMNS, Layout, Position, Table
from flbench.report.ticks import Tick, place_label


@dataclass(frozen=True)
class Standing:
    """A position in one of the leaderboard's tables."""

    table: Table
    at: Position

    @property
    def cell(self) -> Cell:
        """The cell there."""
        return self.table.cells[self.at]


@dataclass(frozen=True)
class OverallRow:
    """One row over all columns."""

    row: tuple[Tick, ...]  # the place on each row axis
    standings: tuple[Standing | None, ...]  # its position in each column; None where nothing was requested
    complete: int  # columns in which all of its seeds have a value
    mean: float | None  # mean over columns of the mean over seeds; None unless it is complete in every column
    interval: tuple[float, float] | None  # of that mean, over seeds and test images
    rank: float | None  # mean rank among the rows that are complete in every column
    best: int  # columns in which it is the best or tied with it

    @property
    def is_without_shared_model(self) -> bool:
        """Whether parts of the model stay on the clients."""
        return any(one.cell.personal for one in self.standings if one)


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
    first = next((table for _, tables in sections for table in tables), None)
    if first is None:
        return None
    columns: list[str] = []
    rows: dict[tuple[Tick, ...], dict[int, Standing]] = {}
    for title, tables in sections:
        for table in tables:
            if (table.kind, table.row_axes) != (first.kind, first.row_axes):
                continue
            for (r, c), _ in sorted(table.cells.items(), key=lambda item: item[0][::-1]):
                rows.setdefault(table.rows[r], {})[len(columns) + c] = Standing(table, (r, c))
            for col in table.cols:
                parts = [title if len(sections) > 1 else "", table.title, place_label(table.col_axes, col)]
                columns.append(", ".join(filter(None, parts)) or METRICS[table.metric].title)
    standings = {row: [found.get(c) for c in range(len(columns))] for row, found in rows.items()}
    means = {
        row: [one.cell.summary.mean for one in found if one and one.cell.complete and one.cell.summary]
        for row, found in standings.items()
    }
    full = [row for row, of in means.items() if len(of) == len(columns)]
    sign = 1 if METRICS[first.metric].lower_is_better else -1
    ranks = dict(zip(full, mean_ranks(sign * np.array([means[row] for row in full])), strict=True)) if full[1:] else {}
    found = [_row(row, standings[row], means[row], ranks.get(row)) for row in rows]
    found.sort(key=lambda one: (one.rank or math.inf, one.mean is None, sign * (one.mean or 0), -one.complete, one.row))
    return Overall(first.row_axes, tuple(columns), tuple(found), first.metric, len(full))


def _row(
    row: tuple[Tick, ...], standings: Sequence[Standing | None], means: Sequence[float], rank: float | None
) -> OverallRow:
    full = len(means) == len(standings)
    summary = summarize(means)
    cells = [one.cell for one in standings if one]
    images = min((cell.images for cell in cells if cell.images), default=None)
    return OverallRow(
        row=row,
        standings=tuple(standings),
        complete=len(means),
        mean=summary.mean if summary and full else None,
        interval=interval_across([cell.by_seed for cell in cells], images) if full else None,
        rank=rank,
        best=sum(one is not None and one.at in one.table.best | one.table.tied for one in standings),
    )


def mean_ranks(values_RC: NDArray[Any]) -> list[float]:
    """Return the mean over columns C of each row's rank in the column, 1 for the least; ties share their mean rank."""
    from scipy.stats import rankdata

    ranks: list[float] = rankdata(values_RC, axis=0).mean(axis=1).tolist()
    return ranks
