"""The table of the first page: few columns; the baseline, the rows of planned comparisons, and the best others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from flbench.choices import Measure
from flbench.metric_specs import METRICS
from flbench.report.board import Section
from flbench.report.cells import Cell, Position, tick_of
from flbench.report.planned import Planned, in_groups, is_named, meant_by
from flbench.report.stats import LEVEL, Contrast
from flbench.report.tables import Table
from flbench.report.ticks import Tick
from flbench.report.wording import column_name
from flbench.sweeps.match import all_of

#: Most columns where sweeps do not name them, and most rows.
MOST_COLUMNS, MOST_ROWS = 5, 12

#: Most columns of a table of planned comparisons where none of its columns is on the page.
MOST_COMPARED = 3


#: A row, mostly its place on the row axes.
AnyRow = TypeVar("AnyRow", bound="tuple[Any, ...]")


@dataclass(frozen=True)
class Column:
    """A column of a table of a section."""

    section: Section
    table: Table
    number: int

    @property
    def name(self) -> str:
        """Its label, as planned comparisons name it."""
        return column_name(self.table, self.table.cols[self.number])

    @property
    def cells(self) -> list[Cell]:
        """Its cells, from the first row to the last; all agree in the fields that head the column."""
        return [cell for (_, c), cell in self.table.cells.items() if c == self.number]


@dataclass(frozen=True)
class Row:
    """A row over the columns."""

    row: tuple[Tick, ...]  # the place on each row axis
    cells: tuple[Cell | None, ...]  # its cell in each column; None where nothing was requested
    better: tuple[bool, ...]  # by column, whether it is shown to be better than the baseline

    @property
    def is_personal(self) -> bool:
        """Whether parts of the model stay on the clients."""
        return any(cell.personal for cell in self.cells if cell)


@dataclass(frozen=True)
class Headline:
    """A table of some columns and their most important rows."""

    row_axes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    baseline: tuple[Tick, ...] | None  # the row with which the others are compared, first where rows are chosen
    left_out: int  # rows of these columns that are not among ``rows``


@dataclass(frozen=True)
class Answer:
    """Planned comparisons of a section of one kind (``in_groups``), and their columns that the first page shows."""

    section: Section
    planned: tuple[Planned, ...]
    columns: tuple[str, ...]

    @property
    def measure(self) -> Measure:
        """What they compare."""
        return self.planned[0].pair.measure

    @property
    def shown(self) -> list[Planned]:
        """The comparisons in these columns."""
        return [one for one in self.planned if one.column in self.columns]


def answers(sections: Sequence[Section], found: Headline | None) -> list[Answer]:
    """Return the planned comparisons of the first page, section by section."""
    compared = []
    for section in sections:
        headed = [column.name for column in found.columns if column.section is section] if found else []
        for some in in_groups(section.planned) if section.layout.headline != () else ():
            every = list(dict.fromkeys(one.column for one in some))
            columns = [column for column in headed if column in every] or every[:MOST_COMPARED]
            compared.append(Answer(section, tuple(some), tuple(columns)))
    return compared


def headline(sections: Sequence[Section]) -> Headline | None:
    """Return the table of the columns that the sweeps name, else of each section's first ones; None without columns."""
    columns = [column for section in sections for column in _columns_of(section, len(sections))]
    return _headline(columns, most=MOST_ROWS) if columns else None


def whole(section: Section, kind: str) -> Headline:
    """Return all columns and rows of a section's tables on one kind of experiment, in their order."""
    tables = [table for table in section.details if table.kind == kind]
    return _headline([Column(section, table, c) for table in tables for c in range(len(table.cols))], most=None)


def _headline(columns: Sequence[Column], most: int | None) -> Headline:
    """Return the table of some columns with its ``most`` most important rows; None: with all rows, in their order."""
    row_axes = tuple(dict.fromkeys(axis for column in columns for axis in column.table.row_axes))
    cells, baselines, better = [], [], []
    for column in columns:
        places, at = _places(column.table, row_axes), column.table.baseline
        of = {places[cell.at[0]]: cell for cell in column.cells}
        baseline = None if at is None else places[column.table.rows.index(at)]
        cells.append(of)
        baselines.append(baseline)
        better.append(_better(column, None if baseline is None else of.get(baseline)))
    found = list(dict.fromkeys(row for of in cells for row in of))
    first = next((row for row in baselines if row in found), None)
    order = sorted(found) if most is None else _in_order(found, columns, cells, first)
    rows = []
    for row in order[:most]:
        own = tuple(of.get(row) for of in cells)
        is_better = tuple(cell is not None and cell.origin in good for cell, good in zip(own, better, strict=True))
        rows.append(Row(row, own, is_better))
    return Headline(row_axes, tuple(columns), tuple(rows), first, len(order) - len(rows))


def _columns_of(section: Section, sections: int) -> list[Column]:
    """Return the columns that a section shows; without a choice the first ones, so that ``sections`` have room."""
    columns = [
        Column(section, table, number)
        for table in section.details
        if table.kind == section.details[0].kind
        for number in range(len(table.cols))
    ]
    if section.layout.headline is None:
        return columns[: max(1, MOST_COLUMNS // sections)]
    wanted = list(map(all_of, section.layout.headline))
    places = {
        number: next((place for place, test in enumerate(wanted) if test(column.cells[0].experiment)), None)
        for number, column in enumerate(columns)
    }
    chosen = sorted((place, number) for number, place in places.items() if place is not None)
    return [columns[number] for _, number in chosen]


def _places(table: Table, axes: Sequence[str]) -> dict[int, tuple[Tick, ...]]:
    """Return the place of each row of a table on these axes; its cells know those that the table lacks."""
    own = [dict(zip(table.row_axes, row, strict=True)) for row in table.rows]
    return {
        r: tuple(own[r][axis] if axis in own[r] else tick_of(cell, axis) for axis in axes)
        for (r, _), cell in table.cells.items()
    }


def _in_order(
    rows: Sequence[tuple[Tick, ...]],
    columns: Sequence[Column],
    cells: Sequence[Mapping[tuple[Tick, ...], Cell]],
    baseline: tuple[Tick, ...] | None,
) -> list[tuple[Tick, ...]]:
    """Return the baseline, the rows of planned comparisons with its method, and the others, best first.

    A row is better than another one if it has values in more columns, then by its mean rank in these columns, as a
    share of the rows there.
    """
    import pandas as pd

    shares: dict[tuple[Tick, ...], list[float]] = {row: [] for row in rows}
    planned = set()
    for column, found in zip(columns, cells, strict=True):
        means = {row: cell.summary.mean for row, cell in found.items() if cell.complete and cell.summary}
        ranks = pd.Series([*means.values()], dtype=float).rank(
            ascending=METRICS[column.table.metric].lower_is_better, pct=True
        )
        for row, share in zip(means, ranks, strict=True):
            shares[row].append(share)
        is_planned = is_named(column.table.cells.values(), column.section.layout)
        planned |= {row for row, cell in found.items() if is_planned(cell)}
    return in_order(shares, {baseline}, planned)


def in_order(
    scores: Mapping[AnyRow, Sequence[float]], baselines: Collection[AnyRow | None], planned: Collection[AnyRow]
) -> list[AnyRow]:
    """Return the baselines, then the rows of planned comparisons, then the others, best first.

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


def _better(column: Column, baseline: Cell | None) -> set[Position]:
    """Return the cells of a column that are shown to be better than its baseline.

    A planned comparison of these two cells alone shows it and passes all checks; exploratory tests have no checks.
    """
    found: dict[Position, Contrast | None] = {}
    alone = [one for one in column.section.gains if one.cells == 1 and not one.between and one.column == column.name]
    for one in reversed(alone):  # the first of several counts
        every = column.table.cells.values()
        has_value, is_other = (meant_by(value, every) for value in (one.pair.value, one.pair.against))
        if baseline and is_other(baseline.experiment):
            is_baseline = column.section.layout.is_baseline_but_for(one.pair.field)
            meant = (cell for cell in column.cells if has_value(cell.experiment) and is_baseline(cell.experiment))
            found |= {cell.at: None if one.doubts else one.contrast for cell in meant}
    is_lower_better = METRICS[column.table.metric].lower_is_better
    return {
        at
        for at, one in found.items()
        if one and one.p is not None and one.p < LEVEL and (one.difference.mean < 0) == is_lower_better
    }
