"""The table of the first page: few columns; the baseline, the rows of planned comparisons, and the best others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from flbench.config import Experiment
from flbench.metric_specs import METRICS
from flbench.report.board import Details, Section
from flbench.report.planned import Planned, is_baseline_but_for, is_named, means
from flbench.report.stats import LEVEL
from flbench.report.summary import Standing, mean_ranks
from flbench.report.tables import Position, Table
from flbench.report.ticks import Tick
from flbench.report.wording import column_name
from flbench.sweeps import condition

#: Most columns where sweeps do not name them, and most rows.
MOST_COLUMNS, MOST_ROWS = 5, 12

#: Most columns of a table of planned comparisons where none of its columns is on the page.
MOST_COMPARED = 3


#: A row, mostly its place on the row axes.
AnyRow = TypeVar("AnyRow", bound="tuple[Any, ...]")


@dataclass(frozen=True)
class Column:
    """A column of a section."""

    section: Section
    details: Details
    number: int
    rows: Mapping[tuple[Tick, ...], int]  # the table's rows by their place on the axes of the page

    @property
    def name(self) -> str:
        """Its label, as planned comparisons name it."""
        return column_name(self.details.table, self.details.table.cols[self.number])

    @property
    def baseline(self) -> tuple[Tick, ...] | None:
        """The row of the page with which the others are compared."""
        table = self.details.table
        return next((row for row, at in self.rows.items() if table.rows[at] == self.details.baseline), None)

    @cached_property
    def against_baseline(self) -> Mapping[Position, Planned]:
        """The planned comparisons of one cell of the column with the baseline alone, by that cell's position."""
        reference = self.standing(self.baseline) if self.baseline else None
        cells, found = self.details.table.cells, dict[Position, Planned]()
        alone = [one for one in self.section.planned if one.cells == 1 and not one.between and one.column == self.name]
        for one in alone:
            has_value, is_other = (
                means(cells.values(), one.pair.field, of) for of in (one.pair.value, one.pair.against)
            )
            if reference and is_other(reference.cell.experiment):
                is_baseline = is_baseline_but_for(one.pair.field, self.section.layout)
                for at, cell in cells.items():
                    if at[1] == self.number and has_value(cell.experiment) and is_baseline(cell.experiment):
                        found.setdefault(at, one)
        return found

    def standing(self, row: tuple[Tick, ...]) -> Standing | None:
        """Return the position of a row; None where nothing was requested."""
        table = self.details.table
        at = (self.rows[row], self.number) if row in self.rows else None
        return Standing(table, at) if at in table.cells else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """A row over the columns."""

    row: tuple[Tick, ...]  # the place on each row axis
    standings: tuple[Standing | None, ...]  # its position in each column
    better: tuple[bool, ...]  # by column, whether it is shown to be better than the baseline


@dataclass(frozen=True)
class Headline:
    """The table of the first page."""

    row_axes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    baseline: tuple[Tick, ...] | None  # the row with which the others are compared, first where rows are chosen
    left_out: int  # rows of these columns that are not among ``rows``


@dataclass(frozen=True)
class Answer:
    """Planned comparisons of a section, or its interactions, and the columns of these that the first page shows."""

    section: Section
    planned: tuple[Planned, ...]
    columns: tuple[str, ...]

    @property
    def shown(self) -> list[Planned]:
        """The comparisons in these columns."""
        return [one for one in self.planned if one.column in self.columns]


def answers(sections: Sequence[Section], found: Headline | None) -> list[Answer]:
    """Return the planned comparisons of the first page: those of each section, then its interactions."""
    compared = []
    for section in sections:
        headed = [column.name for column in found.columns if column.section is section] if found else []
        for is_interaction in (False, True):
            some = tuple(one for one in section.planned if bool(one.between) == is_interaction)
            if some and section.layout.headline != ():
                every = list(dict.fromkeys(one.column for one in some))
                columns = [column for column in headed if column in every] or every[:MOST_COMPARED]
                compared.append(Answer(section, some, tuple(columns)))
    return compared


def headline(sections: Sequence[Section]) -> Headline | None:
    """Return the table of the columns that the sweeps name, else of each section's first ones; None without columns."""
    columns = [column for section in sections for column in _columns_of(section, len(sections))]
    if not columns:
        return None
    row_axes = tuple(dict.fromkeys(axis for column in columns for axis in column.details.table.row_axes))
    columns = [dataclasses.replace(column, rows=_places(column.details.table, row_axes)) for column in columns]
    found = {row: None for column in columns for row in column.rows if column.standing(row)}
    baseline = next((row for one in columns if (row := one.baseline) in found), None)
    order = _in_order(list(found), columns, baseline)
    rows = tuple(_row(columns, row) for row in order[:MOST_ROWS])
    return Headline(row_axes, tuple(columns), rows, baseline, len(order) - len(rows))


def whole(section: Section, kind: str) -> Headline:
    """Return all columns and rows of a section's tables on one kind of experiment, in their order."""
    tables = [details for details in section.details if details.table.kind == kind]
    columns = tuple(
        Column(section, details, number, {row: r for r, row in enumerate(details.table.rows)})
        for details in tables
        for number in range(len(details.table.cols))
    )
    order = sorted({row for column in columns for row in column.rows})
    baseline = next((row for column in columns if (row := column.baseline) is not None), None)
    return Headline(tables[0].table.row_axes, columns, tuple(_row(columns, row) for row in order), baseline, 0)


def _row(columns: Sequence[Column], row: tuple[Tick, ...]) -> Row:
    standings = tuple(column.standing(row) for column in columns)
    better = tuple(_is_better(column, one) for column, one in zip(columns, standings, strict=True))
    return Row(row, standings, better)


def _columns_of(section: Section, sections: int) -> list[Column]:
    """Return the columns that a section shows; without a choice the first ones, so that ``sections`` have room."""
    columns = [
        Column(section, details, number, {})
        for details in section.details
        if details.table.kind == section.details[0].table.kind
        for number in range(len(details.table.cols))
    ]
    if section.layout.headline is None:
        return columns[: max(1, MOST_COLUMNS // sections)]
    wanted = list(map(condition, section.layout.headline))
    places = {
        number: next((place for place, test in enumerate(wanted) if test(_first(column))), None)
        for number, column in enumerate(columns)
    }
    chosen = sorted((place, number) for number, place in places.items() if place is not None)
    return [columns[number] for _, number in chosen]


def _places(table: Table, axes: Sequence[str]) -> dict[tuple[Tick, ...], int]:
    """Return a table's rows by their place on these axes, where sections have different ones: all cells have a head."""
    own = {r: dict(zip(table.row_axes, row, strict=True)) for r, row in enumerate(table.rows)}
    found = {}
    for (r, _), cell in sorted(table.cells.items()):
        found[tuple(own[r][axis] if axis in own[r] else cell.tick(axis) for axis in axes)] = r
    return found


def _first(column: Column) -> Experiment:
    """Return an experiment of a column: all agree in the fields that head it."""
    table = column.details.table
    return next(cell.experiment for (_, c), cell in sorted(table.cells.items()) if c == column.number)


def _in_order(
    rows: Sequence[tuple[Tick, ...]], columns: Sequence[Column], baseline: tuple[Tick, ...] | None
) -> list[tuple[Tick, ...]]:
    """Return the baseline, the rows of planned comparisons with its method, and the others, best first.

    A row is better than another one if it has values in more columns, then by its mean rank in these columns, as a
    share of the rows there.
    """
    places: dict[tuple[Tick, ...], list[float]] = {row: [] for row in rows}
    for column in columns:
        standings = [(row, one) for row in rows if (one := column.standing(row)) and one.cell.complete]
        means = [one.cell.summary.mean if one.cell.summary else math.nan for _, one in standings]
        sign = 1 if METRICS[column.details.table.metric].lower_is_better else -1
        ranks = mean_ranks(sign * np.array([means]).T) if means else []
        for (row, _), rank in zip(standings, ranks, strict=True):
            places[row].append(rank / len(standings))
    planned = set()
    for column in columns:
        is_planned = is_named(column.details.table.cells.values(), column.section.layout)
        planned |= {row for row in rows if (one := column.standing(row)) and is_planned(one.cell)}
    return in_order(places, {baseline}, planned)


def in_order(
    scores: Mapping[AnyRow, Sequence[float]], baselines: Collection[AnyRow | None], planned: Collection[AnyRow]
) -> list[AnyRow]:
    """Return rows by what matters: baselines, those of planned comparisons, and the others, best first.

    Args:
        scores: for each row one in each column where it has a value, lower is better. A row with more of them is better
            than another one, then one with a lower mean.
        baselines: the rows with which others are compared.
        planned: the rows that a planned comparison names.
    """

    def key(row: AnyRow) -> tuple[bool, bool, int, float, AnyRow]:
        own = scores[row]
        return row not in baselines, row not in planned, -len(own), fmean(own) if own else 0.0, row

    return sorted(scores, key=key)


def _is_better(column: Column, standing: Standing | None) -> bool:
    """Return whether a cell is shown to be better than the baseline of its column.

    By the planned comparison where there is one of these two cells alone, else by the exploratory test.
    """
    if standing is None:
        return False
    table = column.details.table
    at = table.twins.get(standing.at, standing.at)
    planned = column.against_baseline.get(at)
    contrast = planned.contrast if planned else column.details.to_baseline.get(at)
    if contrast is None or contrast.p is None or contrast.p >= LEVEL:
        return False
    return (contrast.difference.mean < 0) == METRICS[table.metric].lower_is_better
