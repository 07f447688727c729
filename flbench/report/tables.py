"""Tables: the report options of a sweep, the rows and columns that follow from them, and the best of each column."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, Position, grouped, rows_of, tick_of, ticks_of, with_columns
from flbench.report.stats import Contrast, contrasts
from flbench.report.ticks import Tick, axis_label, place_label
from flbench.sweeps.axes import axes_of
from flbench.sweeps.layout import Layout

if TYPE_CHECKING:
    import pandas as pd


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
        at = [tick_of(cell, axis, self.named) for axis in self.rows]
        for axis, place in self.of_rows:
            value = tick_of(cell, axis, self.named)
            at[place] = Tick((*at[place].order, value.order), f"{at[place].label}, {axis_label(axis, value)}")
        return tuple(at)

    def col(self, cell: Cell, axes: Sequence[str] | None = None) -> tuple[Tick, ...]:
        """Return the column of a cell, on all column axes or on some of them."""
        return tuple(tick_of(cell, axis, self.named) for axis in (self.cols if axes is None else axes))


def axes_for(cells: Sequence[Cell], layout: Layout, chosen: Sequence[str] = ()) -> Axes:
    """Return the rows and columns of cells of one kind.

    Fields that vary and are not in the layout are columns. A field that depends on the row alone, such as a weight
    decay that an override gives to one normalization, joins the row's label instead: as a column, rows would share no
    cell. Hyperparameters of ``layout.tune`` stay columns, so that rows are compared at equal settings. A field of the
    problem (``Experiment.problem``) is a column, too, since rows that differ in it are not comparable; one whose value
    follows from another column axis, such as rounds that are varied together with local steps, is no axis of its own.
    Fields in ``chosen`` are neither rows nor columns.
    """
    wanted = [axis for axis in (*layout.rows, *layout.cols) if axis not in chosen]
    present = {axis for axis in wanted if axis == "data" or any(cell.experiment.has(axis) for cell in cells)}
    rows, asked = (tuple(axis for axis in axes if axis in present) for axes in (layout.rows, layout.cols))
    named = (*rows, *asked, *chosen)
    others = [axis for axis in axes_of(type(cell.experiment) for cell in cells) if axis not in named]
    others = [axis for axis in others if varies(cells, axis, named)]
    ticks = {axis: ticks_of(cells, axis, named) for axis in (*rows, *asked, *others)}

    def follows(axis: str, *origins: str) -> bool:
        """Return whether an axis has one value for each place on others."""
        places = list(zip(*(ticks[one] for one in origins), strict=True)) or [()] * len(cells)
        return len({*places}) == len({*zip(places, ticks[axis], strict=True)})

    problem = type(cells[0].experiment).problem
    of_rows: list[tuple[str, int]] = []
    of_cols: list[tuple[str, str]] = []
    kept = list(asked)
    for axis in others:
        if axis in problem and (origin := next((one for one in kept if follows(axis, one)), None)) is not None:
            of_cols.append((axis, origin))
        elif axis in problem.union(layout.tune) or follows(axis, *asked) or not follows(axis, *rows):
            kept.append(axis)
        else:  # the first row axis that it follows from, the last where it takes all of them
            place = next((at for at, one in enumerate(rows[:-1]) if follows(axis, one)), len(rows) - 1)
            of_rows.append((axis, place))
    return Axes(rows, (*kept[len(asked) :], *asked), named, tuple(of_rows), tuple(of_cols))


def varies(cells: Sequence[Cell], axis: str, named: Sequence[str] = ()) -> bool:
    """Return whether cells differ on an axis."""
    name = axis.partition(".")[0]
    # Nearly always all cells of a sweep share one object, and with it the position.
    is_one = axis not in ("data", "rounds") and len({id(getattr(cell.experiment, name, None)) for cell in cells}) == 1
    return not is_one and len({*ticks_of(cells, axis, named)}) > 1


#: A table with more columns than this is split by its slowest column axis.
MAX_COLUMNS = 7

#: The title of the tables of a kind; federated ones have none.
KIND_TITLES: Mapping[str, str] = {"federated": "", "centralized": "Centralized: one model on all the data"}


def kind_name(kind: str) -> str:
    """Return the name of a kind of experiments; empty for federated ones, which go without saying."""
    return "" if kind == "federated" else kind


@dataclass(frozen=True, eq=False)
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
    frame: pd.DataFrame  # the cells, row by row
    margin: float  # a cell ties with the best if it is shown to be less than this worse
    ranked: bool  # whether the cells of a column are compared
    baseline: tuple[Tick, ...] | None = None  # the row that the others are compared with, if there is one

    @cached_property
    def cells(self) -> Mapping[Position, Cell]:
        """The cells by row and column."""
        return {cell.at: cell for cell in rows_of(self.frame)}

    @property
    def title(self) -> str:
        """The kind in words, and the place."""
        return ": ".join(filter(None, [KIND_TITLES.get(self.kind, self.kind), self.place]))

    @property
    def short_title(self) -> str:
        """The kind by its name, and the place."""
        return ": ".join(filter(None, [kind_name(self.kind), self.place]))


def lay_out(cells: pd.DataFrame, layout: Layout, *, ranked: bool = True, chosen: Sequence[str] = ()) -> list[Table]:
    """Return cells of one kind as tables of a readable width.

    There is one table for each value of the slower column axes, or several of about the same width where one would be
    too wide.
    """
    if cells.empty:
        return []
    own = rows_of(cells)
    axes = axes_for(own, layout, chosen)
    for slow in range(max(1, len(axes.cols))):
        col, groups = partial(axes.col, axes=axes.cols[slow:]), grouped(own, partial(axes.col, axes=axes.cols[:slow]))
        if max(len({*map(col, members)}) for members in groups) <= MAX_COLUMNS:
            break
    tables = []
    for members in groups:
        place = place_label(axes.cols[:slow], axes.col(members[0], axes.cols[:slow]))
        cols = sorted({*map(col, members)})
        size = math.ceil(len(cols) / math.ceil(len(cols) / MAX_COLUMNS))
        for start in range(0, len(cols), size):
            some = cols[start : start + size]
            shown = [cell for cell in members if col(cell) in some]
            rows = sorted({*map(axes.row, shown)})
            at = {(rows.index(axes.row(cell)), some.index(col(cell))): cell.Index for cell in shown}
            assert len(at) == len(shown), "two cells at one place"
            placed = with_columns(cells.loc[[at[one] for one in sorted(at)]], at=sorted(at))
            frame = _compared(placed, layout.tie_margin, ranked=ranked)
            shape = axes.rows, axes.cols[slow:], tuple(rows), tuple(some)
            tables.append(Table(own[0].kind, place, own[0].metric, *shape, frame, layout.tie_margin, ranked))
    return tables


def _compared(cells: pd.DataFrame, margin: float, *, ranked: bool) -> pd.DataFrame:
    """Return the cells of a table, compared within each contest.

    A contest are the complete cells of one column on the same data, each unit once, if there are two or more. A copy of
    an earlier cell of the column shares its marks. A cell is tied by the one-sided paired t-test of non-inferiority
    (Schuirmann 1987), each at 5 %: of cells that are worse by the margin or more at most 5 of 100 are marked, whatever
    the number of cells (``tests/report/test_simulation.py``). A cell that is neither tied nor significantly worse is
    undecided.
    """
    own, first = rows_of(cells), dict[Any, Position]()
    origins = [first.setdefault((cell.at[1], cell.unit), cell.at) for cell in own]
    groups: defaultdict[Any, dict[Position, Cell]] = defaultdict(dict)
    for cell, origin in zip(own, origins, strict=True):
        if ranked and cell.complete and cell.summary and cell.at == origin:
            groups[cell.at[1], cell.fingerprint][cell.at] = cell
    contests = [group for group in groups.values() if len(group) > 1]
    metric = METRICS[own[0].metric]
    best: set[Position] = set()
    to_best: dict[Position, Contrast] = {}
    for contest in contests:
        means = {at: cell.summary.mean for at, cell in contest.items() if cell.summary}
        printed = {at: float(metric.text(mean)) for at, mean in means.items()}
        best |= {at for at, value in printed.items() if value == metric.best(printed.values())}
        leader = next(at for at, mean in means.items() if mean == metric.best(means.values()))
        to_best |= contrasts({at: cell.by_seed for at, cell in contest.items()}, leader)
    sign = -1 if metric.lower_is_better else 1
    tied = {at for at, one in to_best.items() if one.difference.is_above(-margin, sign)} - best
    number = {at: place for place, contest in enumerate(contests) for at in contest}
    return with_columns(
        cells,
        origin=origins,
        contest=[number.get(cell.at) for cell in own],
        is_best=[origin in best for origin in origins],
        is_tied=[origin in tied for origin in origins],
        to_best=[to_best.get(cell.at) for cell in own],
    )
