"""The answer in one table: every row over all the columns of a leaderboard, or of each of its sections."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, Tick, axis_label
from flbench.report.layout import Layout
from flbench.report.stats import bootstrap_interval, summarize
from flbench.report.tables import MAX_COLUMNS, Position, Table


@dataclass(frozen=True)
class Place:
    """A position in one of the leaderboard's tables."""

    table: Table
    at: Position

    @property
    def cell(self) -> Cell:
        """The cell there."""
        return self.table.cells[self.at]


@dataclass(frozen=True)
class OverallRow:
    """One row over all columns.

    Attributes:
        row: the place on each row axis.
        places: where it stands in each column; None where nobody asked for it.
        complete: columns in which all of its seeds have a value.
        mean: mean over columns of the mean over seeds; None unless it is complete in every column.
        interval: of that mean, by a stratified bootstrap.
        rank: mean rank among the rows that are complete in every column.
        best: columns in which it is the best or not shown to be worse than it.
    """

    row: tuple[Tick, ...]
    places: tuple[Place | None, ...]
    complete: int
    mean: float | None
    interval: tuple[float, float] | None
    rank: float | None
    best: int

    @property
    def is_without_shared_model(self) -> bool:
        """Whether parts of the model stay on the clients."""
        return any(place.cell.personal for place in self.places if place)


@dataclass(frozen=True)
class Overall:
    """Rows, the best first, and the names of the columns.

    Attributes:
        row_axes: what the rows are.
        columns: their names.
        rows: the best first.
        metric: of the values.
        ranked: rows that are complete in every column.
        title: the section whose columns these are; empty where they are all of the leaderboard's.
    """

    row_axes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[OverallRow, ...]
    metric: str
    ranked: int
    title: str = ""


def overalls(sections: Sequence[tuple[str, Layout, Sequence[Table]]]) -> tuple[Overall, ...]:
    """One table over all columns, or one a section where they are laid out differently or the columns are many.

    Args:
        sections: titles, layouts and ranked tables.
    """
    named = [(title, tables) for title, _, tables in sections]
    if len({layout for _, layout, _ in sections}) == 1:
        whole = overall(named)
        if len(sections) == 1 or whole is None or len(whole.columns) <= MAX_COLUMNS:
            return (whole,) if whole is not None else ()
    each = ((title, overall([(title, tables)])) for title, tables in named)
    return tuple(dataclasses.replace(found, title=title) for title, found in each if found is not None)


def overall(sections: Sequence[tuple[str, Sequence[Table]]]) -> Overall | None:
    """Rows over the columns of all tables of the first table's kind and row axes; None where there is no table.

    Args:
        sections: titles and ranked tables.
    """
    first = next((table for _, tables in sections for table in tables), None)
    if first is None:
        return None
    columns: list[str] = []
    places: dict[tuple[Tick, ...], list[Place | None]] = {}
    several = len(sections) > 1
    for title, tables in sections:
        for table in tables:
            if (table.kind, table.row_axes) == (first.kind, first.row_axes):
                _add(table, title if several else "", columns, places)
    metric = METRICS[first.metric]
    means = {row: _means(found) for row, found in places.items()}
    full = [row for row, of in means.items() if len(of) == len(columns)]
    ranked = _mean_ranks([means[row] for row in full], lower_is_better=metric.lower_is_better) if len(full) > 1 else []
    rank = dict(zip(full, ranked, strict=False))
    rows = [
        _row(row, found, means[row], rank.get(row), len(means[row]) == len(columns)) for row, found in places.items()
    ]
    sign = 1 if metric.lower_is_better else -1
    rows.sort(key=lambda one: (one.rank or math.inf, one.mean is None, sign * (one.mean or 0), -one.complete, one.row))
    return Overall(first.row_axes, tuple(columns), tuple(rows), first.metric, len(full))


def _add(table: Table, section: str, columns: list[str], places: dict[tuple[Tick, ...], list[Place | None]]) -> None:
    """Append the columns of a table."""
    for c, col in enumerate(table.cols):
        labels = [axis_label(axis, at) for axis, at in zip(table.col_axes, col, strict=True)]
        columns.append(", ".join(filter(None, [section, table.title, *labels])) or METRICS[table.metric].title)
        for r, row in enumerate(table.rows):
            if (r, c) in table.cells:
                known = places.setdefault(row, [])
                known += [None] * (len(columns) - 1 - len(known)) + [Place(table, (r, c))]
    for known in places.values():
        known += [None] * (len(columns) - len(known))


def _means(places: Sequence[Place | None]) -> list[float]:
    """The means of the complete cells."""
    return [place.cell.summary.mean for place in places if place and place.cell.complete and place.cell.summary]


def _row(
    row: tuple[Tick, ...], places: Sequence[Place | None], means: Sequence[float], rank: float | None, full: bool
) -> OverallRow:
    summary = summarize(means)
    return OverallRow(
        row=row,
        places=tuple(places),
        complete=len(means),
        mean=summary.mean if summary and full else None,
        interval=bootstrap_interval([place.cell.values for place in places if place]) if full else None,
        rank=rank,
        best=sum(place is not None and place.at in place.table.best | place.table.tied for place in places),
    )


def _mean_ranks(rows: Sequence[Sequence[float]], *, lower_is_better: bool) -> list[float]:
    """Return the mean over columns of each row's rank in the column, 1 for the best; ties share their mean rank."""
    import numpy as np
    from scipy.stats import rankdata

    sign = 1 if lower_is_better else -1
    ranks: list[float] = rankdata(sign * np.asarray(rows), axis=0).mean(axis=1).tolist()
    return ranks
