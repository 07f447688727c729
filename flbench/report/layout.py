"""The report options of a sweep, and the rows and columns of tables that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.choices import SelectBy
from flbench.config import ALIASES, Experiment
from flbench.registry import Component
from flbench.report.cells import Cell, grouped
from flbench.report.runs import compared_fields
from flbench.report.ticks import Tick, axis_label

#: Fields that name a section; they are not axes of its tables.
SECTION = ("dataset", "model")

#: Fields of the problem and its duration. Rows that differ in one of these are not comparable: it is always a column.
PROBLEM = frozenset(
    {"partition", "min_size", "clients", "participation", "val_fraction", "local_steps", "local_epochs", "rounds"}
)


@dataclass(frozen=True)
class Layout:
    """The ``report`` section of a sweep.

    Attributes:
        metric: what is shown and ranked.
        rows, cols: fields that make rows and columns.
        select_by: the rule that chooses a run's round and a row's settings.
        baseline: FIELD=VALUE conditions of the row that the others are compared with.
        tune: hyperparameters to choose where they vary.
        target: value to which rounds and bytes are counted; None: the final value of the baseline.
    """

    metric: str = "acc"
    rows: tuple[str, ...] = ("method", "norm")
    cols: tuple[str, ...] = ("partition",)
    select_by: SelectBy = "last"
    baseline: tuple[str, ...] = ("method=fedavg", "norm=none")
    tune: tuple[str, ...] = ("lr",)
    target: float | None = None

    def spelled_out(self) -> Layout:
        """Return the same layout with the full names of fields."""
        rows, cols, tune = (
            tuple(ALIASES.get(axis, axis) for axis in axes) for axes in (self.rows, self.cols, self.tune)
        )
        return dataclasses.replace(self, rows=rows, cols=cols, tune=tune)


@dataclass(frozen=True)
class Axes:
    """The fields that place cells in rows and columns.

    Attributes:
        rows: axes of the rows.
        cols: axes of the columns.
        named: fields with axes of their own, which the labels of components omit.
        of_rows: fields whose value follows from the row, each with the number of the row axis whose label shows it.
    """

    rows: tuple[str, ...]
    cols: tuple[str, ...]
    named: tuple[str, ...]
    of_rows: tuple[tuple[str, int], ...] = ()

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
    """Return the rows and columns of some cells.

    Fields that vary and are not in the layout are columns. A field whose value follows from the row, such as a weight
    decay that an override gives to one normalization, is part of the row's label instead: as a column it would leave
    rows without a common column. Hyperparameters of ``layout.tune`` stay columns, so that rows are compared at equal
    settings.

    Args:
        cells: cells of one kind.
        layout: the options of their sweep.
        chosen: fields that are neither rows nor columns.
    """
    wanted = (axis for axis in (*layout.rows, *layout.cols) if axis not in chosen)
    present = {axis for axis in wanted if axis == "data" or any(has_axis(cell.experiment, axis) for cell in cells)}
    rows, asked = (tuple(axis for axis in axes if axis in present) for axes in (layout.rows, layout.cols))
    plain = Axes(rows, asked, (*rows, *asked, *chosen))
    others = [axis for axis in axes_of(cell.experiment for cell in cells) if axis not in plain.named]
    others = [axis for axis in others if varies(cells, axis, plain.named)]
    of_rows = {
        axis: place
        for axis in others
        if axis not in PROBLEM.union(layout.tune) and (place := _place(cells, axis, plain)) is not None
    }
    cols = (*(axis for axis in others if axis not in of_rows), *asked)
    return dataclasses.replace(plain, cols=cols, of_rows=tuple(of_rows.items()))


def _place(cells: Sequence[Cell], axis: str, axes: Axes) -> int | None:
    """Return the number of the row axis that a field follows from (the last where only all do); None for a column."""

    def follows(key: Callable[[Cell], Any]) -> bool:
        return all(not varies(alike, axis, axes.named) for alike in grouped(cells, key))

    if follows(axes.col) or not follows(axes.row):
        return None
    last = len(axes.rows) - 1
    return next((place for place in range(last) if follows(lambda cell, place=place: axes.row(cell)[place])), last)  # type: ignore[misc]


def has_axis(experiment: Experiment, axis: str) -> bool:
    """Return whether an experiment has a field, or a component with the field, as in ``method.mu``."""
    name, _, sub = axis.partition(".")
    if name not in type(experiment).model_fields:
        return False
    value = getattr(experiment, name)
    return not sub or (isinstance(value, Component) and sub in {item.name for item in dataclasses.fields(value)})


def axes_of(experiments: Iterable[Experiment]) -> list[str]:
    """Return the axes that tables may have, in the order of the schema."""
    names = dict.fromkeys(name for experiment in experiments for name in compared_fields(experiment))
    return [name for name in (*names, "rounds") if name not in (*SECTION, "kind")]


def varies(cells: Sequence[Cell], axis: str, named: Sequence[str] = ()) -> bool:
    """Return whether cells differ on an axis."""
    return len({cell.tick(axis, named) for cell in cells}) > 1
