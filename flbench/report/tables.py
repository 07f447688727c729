"""Tables: cells in rows and columns of a readable width, and the best cells of each column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, grouped
from flbench.report.layout import Axes, Layout, axes_for
from flbench.report.paired_tests import Contrast, contrasts
from flbench.report.stats import LEVEL
from flbench.report.ticks import Tick, place_label

#: A table with more columns than this is split by its slowest column axis.
MAX_COLUMNS = 7

#: The title of the tables of a kind; federated ones have none.
KIND_TITLES: Mapping[str, str] = {"federated": "", "centralized": "Centralized: one model on all the data"}

Position = tuple[int, int]  # row, column


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns; a position without requested runs has no cell.

    Attributes:
        kind: of the experiments.
        place: what all columns share, where a wide table was split; else empty.
        metric: of the values.
        row_axes, col_axes: the fields of rows and columns.
        rows, cols: the positions on these axes.
        cells: by row and column.
        ranked: whether the cells of a column are compared.
    """

    kind: str
    place: str
    metric: str
    row_axes: tuple[str, ...]
    col_axes: tuple[str, ...]
    rows: tuple[tuple[Tick, ...], ...]
    cols: tuple[tuple[Tick, ...], ...]
    cells: Mapping[Position, Cell]
    ranked: bool = True

    @property
    def title(self) -> str:
        """The kind in words, and the place."""
        return ": ".join(filter(None, [KIND_TITLES.get(self.kind, self.kind), self.place]))

    @property
    def short_title(self) -> str:
        """The kind by its name, and the place."""
        return ": ".join(filter(None, [self.kind if KIND_TITLES.get(self.kind, self.kind) else "", self.place]))

    @cached_property
    def contests(self) -> tuple[Mapping[Position, Cell], ...]:
        """The complete cells that are compared: of one column, on the same data, two or more."""
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
        """Positions that are not the best, but not significantly worse either.

        A cell as good as any is best or tied in at least 97 of 100 cases; of twelve equal cells all are so in 88 (by
        simulation: ``tests/report/test_simulation.py``).
        """
        close = (at for at, one in self.to_best.items() if one.p is not None and one.p >= LEVEL)
        return frozenset(close) - self.best


def lay_out(cells: Sequence[Cell], layout: Layout, *, ranked: bool = True, chosen: Sequence[str] = ()) -> list[Table]:
    """Return the cells as tables of a readable width: one table for each value of the slower column axes.

    Args:
        cells: cells of one kind.
        layout: the options of their sweep.
        ranked: whether the cells of a column are compared.
        chosen: hyperparameters that were chosen, which are neither rows nor columns.
    """
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
        tables += _split(members, place, axes, axes.cols[slow:], ranked)
    return tables


def _split(cells: Sequence[Cell], place: str, axes: Axes, col_axes: tuple[str, ...], ranked: bool) -> list[Table]:
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
        tables.append(Table(kind, place, metric, axes.rows, col_axes, tuple(rows), tuple(some), placed, ranked=ranked))
    return tables
