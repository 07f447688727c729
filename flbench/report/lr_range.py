"""How wide the range of learning rates is in which a row works, and how often it diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, Tick, axis_label, grouped
from flbench.report.layout import Layout, axes_for

#: A learning rate works where its mean is within this of the best one's: two points.
WITHIN = 0.02

#: Fewer learning rates than this say nothing about a range.
FEWEST_RATES = 3


@dataclass(frozen=True)
class Robustness:
    """A row in a column, over its learning rates.

    Attributes:
        row: the place on each row axis.
        where: the column.
        best: mean at the best rate.
        low, high: the smallest and the largest rate of the unbroken range around the best one whose cells are complete
            and within two points of the best.
        open_low, open_high: whether the range ends where the grid does, so that it may be wider.
        diverged: runs that diverged, of ``finished``.
        cells: one a rate, in ascending order.
    """

    row: tuple[Tick, ...]
    where: str
    best: float | None
    low: float
    high: float
    open_low: bool
    open_high: bool
    diverged: int
    finished: int
    rates: int
    cells: tuple[Cell, ...] = field(default=(), compare=False, repr=False)

    @property
    def decades(self) -> float:
        """The width of the range in powers of ten."""
        return math.log10(self.high / self.low)


@dataclass(frozen=True)
class Ranges:
    """Every row and column of one kind of experiment."""

    kind: str
    row_axes: tuple[str, ...]
    rows: tuple[Robustness, ...]


def ranges(cells: Sequence[Cell], layout: Layout) -> Ranges | None:
    """The ranges of learning rates; None where there are too few rates, or the metric has no points."""
    if not METRICS[cells[0].metric].percent:
        return None
    axes = axes_for(cells, layout, ["lr"])
    found = []
    for members in grouped(cells, lambda cell: (axes.col(cell), axes.row(cell))):
        if len(members) >= FEWEST_RATES:
            where = ", ".join(axis_label(axis, at) for axis, at in zip(axes.cols, axes.col(members[0]), strict=True))
            found.append(_range(members, axes.row(members[0]), where))
    return Ranges(cells[0].experiment.kind, axes.rows, tuple(found)) if found else None


def _range(cells: Sequence[Cell], row: tuple[Tick, ...], where: str) -> Robustness:
    cells = sorted(cells, key=lambda cell: cell.training.lr)
    lower = METRICS[cells[0].metric].lower_is_better
    means = [
        (-1 if lower else 1) * cell.summary.mean if cell.complete and cell.summary else -math.inf for cell in cells
    ]
    best = means.index(max(means))
    first = last = best
    good = [math.isfinite(mean) and round(means[best] - mean, 9) <= WITHIN for mean in means]
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(cells) - 1 and good[last + 1]:
        last += 1
    runs = [run for cell in cells for run in cell.runs if run.result is not None]
    summary = cells[best].summary
    return Robustness(
        row=row,
        where=where,
        best=summary.mean if summary and math.isfinite(means[best]) else None,
        low=cells[first].training.lr,
        high=cells[last].training.lr,
        open_low=first == 0,
        open_high=last == len(cells) - 1,
        diverged=sum(run.state == "diverged" for run in runs),
        finished=len(runs),
        rates=len(cells),
        cells=tuple(cells),
    )
