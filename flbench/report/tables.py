"""Tables: the report options of a sweep, the rows and columns that follow from them, and the best of each column."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from flbench.choices import SelectBy
from flbench.config import ALIASES
from flbench.halving import Halving
from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, Unit, grouped
from flbench.report.stats import Contrast, contrasts
from flbench.report.ticks import Tick, axis_label, place_label
from flbench.sweeps.axes import axes_of

#: The margin of a tie between shares, where the sweep names none.
POINT = 0.01


@dataclass(frozen=True)
class Between:
    """Two values of a field, both as JSON: a difference at the first is compared with that at the second."""

    field: str
    first: str
    second: str


@dataclass(frozen=True)
class Pair:
    """A planned comparison of a field's value with another one, both as JSON."""

    field: str
    value: str
    against: str
    between: Between | None = None
    where: tuple[str, ...] = ()  # FIELD=VALUE conditions of the cells that are compared


@dataclass(frozen=True)
class Layout:
    """The ``report`` section of a sweep."""

    metric: str = "acc"  # what is shown and ranked
    # Fields that make rows and columns.
    rows: tuple[str, ...] = ("method", "norm")
    cols: tuple[str, ...] = ("partition",)
    select_by: SelectBy = "last"  # the rule that chooses a run's round and a row's settings
    # FIELD=VALUE conditions of the row that the others are compared with.
    baseline: tuple[str, ...] = ("method=fedavg", "norm=none")
    tune: tuple[str, ...] = ("lr",)  # hyperparameters to choose where they vary
    contrasts: tuple[Pair, ...] = ()  # planned comparisons
    margin: float | None = None  # a cell at most this much worse than the best ties; None: ``tie_margin`` chooses
    target: float | None = None  # value to which rounds and bytes are counted; None: the final value of the baseline
    search: Halving | None = None  # how settings were dropped before the last round
    # Columns on the first page, each as FIELD=VALUE conditions; None: the first ones.
    headline: tuple[tuple[str, ...], ...] | None = None

    @property
    def tie_margin(self) -> float:
        """The margin of a tie: that of the sweep, else the default."""
        return self.default_margin if self.margin is None else self.margin

    @property
    def default_margin(self) -> float:
        """A point for shares, and 0, without ties, for other metrics."""
        return POINT if METRICS[self.metric].percent else 0.0

    def spelled_out(self) -> Layout:
        """Return the same layout with the full names of fields."""
        rows, cols, tune = (
            tuple(ALIASES.get(axis, axis) for axis in axes) for axes in (self.rows, self.cols, self.tune)
        )
        return dataclasses.replace(self, rows=rows, cols=cols, tune=tune)


@dataclass(frozen=True)
class Axes:
    """The fields that place cells in rows and columns."""

    rows: tuple[str, ...]  # axes of the rows
    cols: tuple[str, ...]  # axes of the columns
    named: tuple[str, ...]  # fields with axes of their own, which the labels of components omit
    # Fields whose value follows from the row, each with the number of the row axis whose label shows it.
    of_rows: tuple[tuple[str, int], ...] = ()
    # Fields of the problem whose value follows from a column axis, each with that axis.
    of_cols: tuple[tuple[str, str], ...] = ()

    def row(self, cell: Cell) -> tuple[Tick, ...]:
        """Return the row of a cell."""
        at = [cell.tick(axis, self.named) for axis in self.rows]
        for axis, place in self.of_rows:
            value = cell.tick(axis, self.named)
            at[place] = Tick((*at[place].order, value.order), f"{at[place].label}, {axis_label(axis, value)}")
        return tuple(at)

    def col(self, cell: Cell, axes: Sequence[str] | None = None) -> tuple[Tick, ...]:
        """Return the column of a cell, on all column axes or on some of them."""
        return tuple(cell.tick(axis, self.named) for axis in (self.cols if axes is None else axes))


def axes_for(cells: Sequence[Cell], layout: Layout, chosen: Sequence[str] = ()) -> Axes:
    """Return the rows and columns of cells of one kind.

    Fields that vary and are not in the layout are columns. A field whose value follows from the row, such as a weight
    decay that an override gives to one normalization, is part of the row's label instead: as a column it would leave
    rows without a common column. Hyperparameters of ``layout.tune`` stay columns, so that rows are compared at equal
    settings. A field of the problem (``Experiment.problem``) is a column, too, since rows that differ in it are not
    comparable; one whose value follows from another column axis, such as rounds that are varied together with local
    steps, is no axis of its own. Fields in ``chosen`` are neither rows nor columns.
    """
    wanted = (axis for axis in (*layout.rows, *layout.cols) if axis not in chosen)
    present = {axis for axis in wanted if axis == "data" or any(cell.experiment.has(axis) for cell in cells)}
    rows, asked = (tuple(axis for axis in axes if axis in present) for axes in (layout.rows, layout.cols))
    plain = Axes(rows, asked, (*rows, *asked, *chosen))
    others = [axis for axis in axes_of(type(cell.experiment) for cell in cells) if axis not in plain.named]
    others = [axis for axis in others if varies(cells, axis, plain.named)]
    problem = type(cells[0].experiment).problem
    of_rows = {
        axis: place
        for axis in others
        if axis not in problem.union(layout.tune) and (place := _place(cells, axis, plain)) is not None
    }
    kept, of_cols = list(asked), []
    for axis in others:
        origins = (one for one in kept if axis in problem and _follows(cells, axis, one, plain.named))
        if (origin := next(origins, None)) is not None:
            of_cols.append((axis, origin))
        elif axis not in of_rows:
            kept.append(axis)
    cols = (*kept[len(asked) :], *asked)
    return dataclasses.replace(plain, cols=cols, of_rows=tuple(of_rows.items()), of_cols=tuple(of_cols))


def _follows(cells: Sequence[Cell], axis: str, origin: str, named: Sequence[str]) -> bool:
    """Return whether an axis has one value for each value of another one."""
    return not any(varies(alike, axis, named) for alike in grouped(cells, lambda cell: cell.tick(origin, named)))


def _place(cells: Sequence[Cell], axis: str, axes: Axes) -> int | None:
    """Return the number of the row axis that a field follows from (the last where only all do); None for a column."""

    def follows(key: Callable[[Cell], Any]) -> bool:
        return all(not varies(alike, axis, axes.named) for alike in grouped(cells, key))

    if follows(axes.col) or not follows(axes.row):
        return None
    last = len(axes.rows) - 1
    return next((place for place in range(last) if follows(lambda cell, place=place: axes.row(cell)[place])), last)  # type: ignore[misc]


def varies(cells: Sequence[Cell], axis: str, named: Sequence[str] = ()) -> bool:
    """Return whether cells differ on an axis."""
    return len({cell.tick(axis, named) for cell in cells}) > 1


#: A table with more columns than this is split by its slowest column axis.
MAX_COLUMNS = 7

#: The title of the tables of a kind; federated ones have none.
KIND_TITLES: Mapping[str, str] = {"federated": "", "centralized": "Centralized: one model on all the data"}

Position = tuple[int, int]  # row, column


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns; a position without requested runs has no cell."""

    kind: str  # of the experiments
    place: str  # what all columns share, where a wide table was split; else empty
    metric: str  # of the values
    # The fields of rows and columns.
    row_axes: tuple[str, ...]
    col_axes: tuple[str, ...]
    # The positions on these axes.
    rows: tuple[tuple[Tick, ...], ...]
    cols: tuple[tuple[Tick, ...], ...]
    cells: Mapping[Position, Cell]  # by row and column
    ranked: bool = True  # whether the cells of a column are compared
    margin: float = 0.0  # a cell ties with the best if it is shown to be less than this worse

    @property
    def title(self) -> str:
        """The kind in words, and the place."""
        return ": ".join(filter(None, [KIND_TITLES.get(self.kind, self.kind), self.place]))

    @property
    def short_title(self) -> str:
        """The kind by its name, and the place."""
        return ": ".join(filter(None, [self.kind if KIND_TITLES.get(self.kind, self.kind) else "", self.place]))

    @property
    def in_order(self) -> list[Cell]:
        """The cells, row by row."""
        return [cell for _, cell in sorted(self.cells.items())]

    @cached_property
    def twins(self) -> Mapping[Position, Position]:
        """Cells whose unit an earlier row of the column has, too, each with the position there."""
        first: dict[tuple[int, Unit], Position] = {}
        found = {}
        for (row, col), cell in sorted(self.cells.items()):
            if (origin := first.setdefault((col, cell.unit), (row, col))) != (row, col):
                found[row, col] = origin
        return found

    def _with_twins(self, found: Iterable[Position]) -> frozenset[Position]:
        origins = frozenset(found)
        return origins | {at for at, origin in self.twins.items() if origin in origins}

    @cached_property
    def contests(self) -> tuple[Mapping[Position, Cell], ...]:
        """The complete cells that are compared: of one column, on the same data, each unit once, two or more."""
        if not self.ranked:
            return ()
        groups: dict[tuple[int, str | None], dict[Position, Cell]] = {}
        for (row, col), cell in sorted(self.cells.items()):
            if cell.complete and cell.summary and (row, col) not in self.twins:
                groups.setdefault((col, cell.fingerprint), {})[row, col] = cell
        return tuple(group for group in groups.values() if len(group) > 1)

    @cached_property
    def best(self) -> frozenset[Position]:
        """Positions with the best printed mean of their contest."""
        metric = METRICS[self.metric]
        found = set()
        for contest in self.contests:
            texts = {at: float(metric.text(cell.summary.mean)) for at, cell in contest.items() if cell.summary}
            found |= {at for at, value in texts.items() if value == metric.best(texts.values())}
        return self._with_twins(found)

    @cached_property
    def to_best(self) -> Mapping[Position, Contrast]:
        """Each cell of a contest minus the one with the best mean."""
        metric = METRICS[self.metric]
        out: dict[Position, Contrast] = {}
        for contest in self.contests:
            means = {at: cell.summary.mean for at, cell in contest.items() if cell.summary}
            best = metric.best(means.values())
            out |= contrasts(contest, next(at for at, mean in means.items() if mean == best))
        return out

    def to_baseline(self, row: tuple[Tick, ...] | None) -> Mapping[Position, Contrast]:
        """Return each cell of a contest minus the one in a row, in the contests with that row."""
        out: dict[Position, Contrast] = {}
        for contest in self.contests:
            if (reference := next((at for at in contest if self.rows[at[0]] == row), None)) is not None:
                out |= contrasts(contest, reference)
        return out

    @cached_property
    def tied(self) -> frozenset[Position]:
        """Positions that are shown to be less than ``margin`` worse than the best, each by a test at 5 %.

        The one-sided paired t-test of non-inferiority (Schuirmann 1987): of cells that are worse by the margin or more
        at most 5 of 100 are marked, whatever the number of cells (``tests/report/test_simulation.py``). A cell that is
        neither marked nor significantly worse is undecided.
        """
        sign = -1 if METRICS[self.metric].lower_is_better else 1
        close = (at for at, one in self.to_best.items() if one.difference.is_above(-self.margin, sign))
        return self._with_twins(close) - self.best


def lay_out(cells: Sequence[Cell], layout: Layout, *, ranked: bool = True, chosen: Sequence[str] = ()) -> list[Table]:
    """Return cells of one kind as tables of a readable width: one table for each value of the slower column axes."""
    if not cells:
        return []
    axes = axes_for(cells, layout, chosen)
    for slow in range(max(1, len(axes.cols))):
        groups = grouped(cells, partial(axes.col, axes=axes.cols[:slow]))
        if max(len({axes.col(cell, axes.cols[slow:]) for cell in members}) for members in groups) <= MAX_COLUMNS:
            break
    tables = []
    for members in groups:
        place = place_label(axes.cols[:slow], axes.col(members[0], axes.cols[:slow]))
        tables += _split(members, place, axes, axes.cols[slow:], ranked=ranked, margin=layout.tie_margin)
    return tables


def _split(
    cells: Sequence[Cell], place: str, axes: Axes, col_axes: tuple[str, ...], *, ranked: bool, margin: float
) -> list[Table]:
    """Return one table, or several of about the same width where one would be too wide."""
    cols = sorted({axes.col(cell, col_axes) for cell in cells})
    size = math.ceil(len(cols) / math.ceil(len(cols) / MAX_COLUMNS))
    tables = []
    for start in range(0, len(cols), size):
        some = cols[start : start + size]
        members = [cell for cell in cells if axes.col(cell, col_axes) in some]
        rows = sorted({axes.row(cell) for cell in members})
        placed: dict[Position, Cell] = {}
        for cell in members:
            at = rows.index(axes.row(cell)), some.index(axes.col(cell, col_axes))
            if at in placed:
                raise AssertionError(f"two cells at one place: {placed[at].experiment!r} and {cell.experiment!r}")
            placed[at] = cell
        kind, metric = cells[0].experiment.kind, cells[0].metric
        shape = axes.rows, col_axes, tuple(rows), tuple(some)
        tables.append(Table(kind, place, metric, *shape, placed, ranked=ranked, margin=margin))
    return tables
