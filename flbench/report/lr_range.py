"""The range of learning rates in which a row works, and how often its runs diverge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, grouped, rows_of
from flbench.report.tables import axes_for
from flbench.report.ticks import Tick, place_label
from flbench.sweeps.layout import Layout

if TYPE_CHECKING:
    import pandas as pd

#: A learning rate works where its mean is within this of the best one's: two points.
WITHIN = 0.02

#: Fewer learning rates than this have no range.
FEWEST_RATES = 3


@dataclass(frozen=True)
class Range:
    """A row in a column, over its learning rates."""

    row: tuple[Tick, ...]  # the place on each row axis
    column: str  # label of the column
    best: float | None  # mean at the best rate; None where no cell is complete
    # The ends of the unbroken range around the best rate whose cells are complete and within two points of the best.
    low: float
    high: float
    # Whether the range ends at the last rate of the sweep, so that it may be wider.
    open_low: bool
    open_high: bool
    diverged: int  # runs that diverged, of ``finished``
    finished: int
    rates: int  # number of rates
    cells: tuple[Cell, ...] = field(default=(), compare=False, repr=False)  # one a rate, in ascending order

    @property
    def decades(self) -> float:
        """The width of the range in powers of ten."""
        return math.log10(self.high / self.low)


@dataclass(frozen=True)
class Ranges:
    """Every row and column of one kind of experiment."""

    kind: str
    row_axes: tuple[str, ...]
    rows: tuple[Range, ...]


def ranges(cells: pd.DataFrame, layout: Layout) -> list[Ranges]:
    """Return the ranges of learning rates of one kind; none for too few rates, or a metric that is no percentage."""
    if not METRICS[layout.metric].percent:
        return []
    own = rows_of(cells)
    axes = axes_for(own, layout, ["lr"])
    found = [
        _range(members, axes.row(members[0]), place_label(axes.cols, axes.col(members[0])))
        for members in grouped(own, lambda cell: (axes.col(cell), axes.row(cell)))
        if len(members) >= FEWEST_RATES
    ]
    return [Ranges(own[0].kind, axes.rows, tuple(found))] if found else []


def _range(cells: Sequence[Cell], row: tuple[Tick, ...], column: str) -> Range:
    cells = sorted(cells, key=lambda cell: cell.experiment.lr)
    sign = -1 if METRICS[cells[0].metric].lower_is_better else 1
    means = [sign * cell.summary.mean if cell.complete and cell.summary else -math.inf for cell in cells]
    best = means.index(max(means))
    good = [math.isfinite(mean) and round(means[best] - mean, 9) <= WITHIN for mean in means]
    first = last = best
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(cells) - 1 and good[last + 1]:
        last += 1
    runs = [run for cell in cells for run in cell.runs if run.result is not None]
    summary = cells[best].summary
    return Range(
        row=row,
        column=column,
        best=summary.mean if summary and math.isfinite(means[best]) else None,
        low=cells[first].experiment.lr,
        high=cells[last].experiment.lr,
        open_low=first == 0,
        open_high=last == len(cells) - 1,
        diverged=sum(run.state == "diverged" for run in runs),
        finished=len(runs),
        rates=len(cells),
        cells=tuple(cells),
    )
