"""Cells laid out in rows and columns of a readable width, and what stands out in each column."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flbench.config import Experiment
from flbench.registry import Component
from flbench.report.cells import Cell, Tick, axis_label, grouped
from flbench.report.contrasts import Contrast, contrasts
from flbench.report.frames import compared_fields
from flbench.report.numbers import METRICS
from flbench.report.stats import LEVEL

#: A table with more columns than this is split by its slowest column axis.
MAX_COLUMNS = 7

#: Fields that name a section, and fields that are not axes of its tables.
SECTION = ("dataset", "model")

Position = tuple[int, int]  # row, column


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns; a position that nobody wished for holds None."""

    title: str
    kind: str
    metric: str
    row_axes: tuple[str, ...]
    col_axes: tuple[str, ...]
    rows: tuple[tuple[Tick, ...], ...]
    cols: tuple[tuple[Tick, ...], ...]
    cells: Mapping[Position, Cell]
    ranked: bool = True

    @cached_property
    def contests(self) -> tuple[Mapping[Position, Cell], ...]:
        """What may be compared: the complete cells of a column on the same data, where there are two at least."""
        if not self.ranked:
            return ()
        groups: dict[tuple[int, str | None], dict[Position, Cell]] = {}
        for (row, col), cell in sorted(self.cells.items()):
            if cell.complete and cell.summary:
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
        return frozenset(found)

    @cached_property
    def to_best(self) -> Mapping[Position, Contrast]:
        """Each cell of a contest against the one with the best mean."""
        metric = METRICS[self.metric]
        out: dict[Position, Contrast] = {}
        for contest in self.contests:
            means = {at: cell.summary.mean for at, cell in contest.items() if cell.summary}
            best = metric.best(means.values())
            out |= contrasts(contest, next(at for at, mean in means.items() if mean == best))
        return out

    def to_baseline(self, row: tuple[Tick, ...] | None) -> Mapping[Position, Contrast]:
        """Each cell of a contest against the one in a row, where that is among them."""
        out: dict[Position, Contrast] = {}
        for contest in self.contests:
            if (reference := next((at for at in contest if self.rows[at[0]] == row), None)) is not None:
                out |= contrasts(contest, reference)
        return out

    @cached_property
    def tied(self) -> frozenset[Position]:
        """Positions that are not the best, and are not shown to be worse than it either.

        A cell as good as any is best or tied in at least 97 of 100 cases; of twelve equals all are so in 88 (by
        simulation: ``tests/report/test_simulation.py``).
        """
        close = (at for at, one in self.to_best.items() if one.p is not None and one.p >= LEVEL)
        return frozenset(close) - self.best

    @property
    def shape(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the rows and columns are."""
        return self.row_axes, self.col_axes


def anywhere(cells: Sequence[Cell], axis: str) -> bool:
    """Whether some cell has such an axis."""
    return axis == "data" or any(has_axis(cell.experiment, axis) for cell in cells)


def has_axis(experiment: Experiment, axis: str) -> bool:
    """Whether an experiment has a field, or a component with the field, as in ``method.mu``."""
    name, _, sub = axis.partition(".")
    if name not in type(experiment).model_fields:
        return False
    value = getattr(experiment, name)
    return not sub or (isinstance(value, Component) and sub in {item.name for item in dataclasses.fields(value)})


def axes_of(experiments: Iterable[Experiment]) -> list[str]:
    """The axes that tables may have, in the order of the schema."""
    names = dict.fromkeys(name for experiment in experiments for name in compared_fields(experiment))
    return [name for name in (*names, "rounds") if name not in (*SECTION, "kind")]


def lay_out(
    cells: Sequence[Cell],
    title: str,
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    ranked: bool = True,
    tuned: Sequence[str] = (),
) -> list[Table]:
    """The cells as tables of a readable width: one table a value of the slower axes; ``tuned`` axes are no axes."""
    if not cells:
        return []
    rows, cols = (tuple(axis for axis in axes if axis not in tuned) for axes in (rows, cols))
    named = (*rows, *cols, *tuned)
    row_axes, asked = (tuple(axis for axis in axes if anywhere(cells, axis)) for axes in (rows, cols))
    col_axes = (*other_axes(cells, named), *asked)
    slow: tuple[str, ...] = ()
    while len(col_axes) > 1 and _widest(cells, slow, col_axes, named) > MAX_COLUMNS:
        slow, col_axes = (*slow, col_axes[0]), col_axes[1:]
    tables = []
    for members in grouped(cells, lambda cell: ticks(cell, slow, named)):
        place = ", ".join(axis_label(axis, at) for axis, at in zip(slow, ticks(members[0], slow, named), strict=True))
        heading = ": ".join(part for part in (title, place) if part)
        tables += _split(members, heading, row_axes, col_axes, named, ranked)
    return tables


def _split(
    cells: Sequence[Cell],
    title: str,
    row_axes: tuple[str, ...],
    col_axes: tuple[str, ...],
    named: Sequence[str],
    ranked: bool,
) -> list[Table]:
    """One table, or several with about as many columns each where one would be too wide."""
    cols = sorted({ticks(cell, col_axes, named) for cell in cells})
    parts = math.ceil(len(cols) / MAX_COLUMNS)
    size = math.ceil(len(cols) / parts)
    tables = []
    for start in range(0, len(cols), size):
        some = cols[start : start + size]
        members = [cell for cell in cells if ticks(cell, col_axes, named) in some]
        rows = sorted({ticks(cell, row_axes, named) for cell in members})
        placed: dict[tuple[int, int], Cell] = {}
        for cell in members:
            at = rows.index(ticks(cell, row_axes, named)), some.index(ticks(cell, col_axes, named))
            if at in placed:
                raise AssertionError(f"two cells at one place: {placed[at].experiment!r} and {cell.experiment!r}")
            placed[at] = cell
        kind, metric = cells[0].experiment.kind, cells[0].metric
        tables.append(Table(title, kind, metric, row_axes, col_axes, tuple(rows), tuple(some), placed, ranked=ranked))
    return tables


def other_axes(cells: Sequence[Cell], named: Sequence[str]) -> list[str]:
    """The axes in which cells differ, besides those that have names."""
    possible = [axis for axis in axes_of(cell.experiment for cell in cells) if axis not in named]
    return [axis for axis in possible if varies(cells, axis, named)]


def ticks(cell: Cell, axes: Sequence[str], named: Sequence[str]) -> tuple[Tick, ...]:
    """Where a cell stands on some axes; ``named`` settings of components have axes of their own."""
    return tuple(cell.tick(axis, named) for axis in axes)


def varies(cells: Sequence[Cell], axis: str, named: Sequence[str] = ()) -> bool:
    """Whether cells stand at different places on an axis."""
    return len({cell.tick(axis, named) for cell in cells}) > 1


def _widest(cells: Sequence[Cell], slow: Sequence[str], col_axes: Sequence[str], named: Sequence[str]) -> int:
    groups = grouped(cells, lambda cell: ticks(cell, slow, named))
    return max(len({ticks(cell, col_axes, named) for cell in members}) for members in groups)
