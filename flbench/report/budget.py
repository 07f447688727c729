"""The tuning budget: what a row is expected to reach if only some of its settings are tried.

Of the K settings of a row and column, k are drawn without replacement, and the one that the rule ranks first is
reported. That is the i-th best of all K (i = 1, 2, ...) with probability C(K - i, k - 1) / C(K, k), so the expectation
is an exact sum over settings. A run that diverged counts with the accuracy of guessing, 1 / classes: its model answers
with one class. Rows with runs that are missing for another reason have no curve.

The unit is the seed: each has its own expectation, with the ranking of the settings held fixed, and the interval is
Student's t over seeds. Rows share their seeds, so differences between them are smaller than their intervals suggest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, rows_of
from flbench.report.selection import OfKind
from flbench.report.stats import Summary, summarize
from flbench.report.ticks import Tick, place_label


@dataclass(frozen=True)
class Budget:
    """A row in a column."""

    row: tuple[Tick, ...]  # the place on each row axis
    col: tuple[Tick, ...]  # the place on each column axis
    column: str  # label of the column
    curve: tuple[Summary, ...]  # the expected value over seeds for 1, 2, ... settings
    cell: Cell  # of the setting that all settings give


@dataclass(frozen=True)
class Budgets:
    """Every row and column of one kind of experiment."""

    kind: str
    row_axes: tuple[str, ...]
    rows: tuple[Budget, ...]


def budgets(kind: OfKind) -> list[Budgets]:
    """Return the curves of all rows with several settings; none where there are none, or the metric is no accuracy."""
    axes, found = kind.axes, []
    for cell, settings in zip(rows_of(kind.shown), kind.tried, strict=False):
        if METRICS[cell.metric].is_share and len(settings) > 1 and (curve := expected(settings)):
            col = axes.col(cell)
            found.append(Budget(axes.row(cell), col, place_label(axes.cols, col), curve, cell))
    found.sort(key=lambda one: (one.col, one.row))
    return [Budgets(found[0].cell.kind, axes.rows, tuple(found))] if found else []


def expected(settings: Sequence[Cell]) -> tuple[Summary, ...]:
    """Return the expected value for 1, 2, ... of some ranked settings; empty where a run has no value to count."""
    by_setting = [_values(cell) for cell in settings]
    seeds = sorted(set().union(*by_setting))
    if not seeds or any(set(values) != set(seeds) for values in by_setting):
        return ()
    curve: list[Summary] = []
    for drawn in range(1, len(settings) + 1):
        shares = first_of_drawn(len(settings), drawn)
        means = [math.fsum(p * v[seed] for p, v in zip(shares, by_setting, strict=True)) for seed in seeds]
        curve += filter(None, [summarize(means)])
    return tuple(curve)


def first_of_drawn(settings: int, drawn: int) -> list[float]:
    """Return the probability of each of some ranked settings to be the first of ``drawn`` that are drawn.

    >>> first_of_drawn(3, 1), first_of_drawn(4, 2)
    ([0.3333333333333333, 0.3333333333333333, 0.3333333333333333], [0.5, 0.3333333333333333, 0.16666666666666666, 0.0])
    """
    return [math.comb(settings - i, drawn - 1) / math.comb(settings, drawn) for i in range(1, settings + 1)]


def _values(cell: Cell) -> dict[int, float]:
    """Return the value of each seed, that of guessing for one that diverged; empty where another run has none."""
    classes = getattr(getattr(cell.experiment, "dataset", None), "classes", None)
    guess = 1 / classes if classes else None
    diverged = {run.experiment.seed: guess for run in cell.runs if run.state == "diverged" and guess is not None}
    return {**diverged, **cell.by_seed} if len(cell.by_seed) + len(diverged) == cell.requested else {}
