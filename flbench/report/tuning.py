"""Tuning: the chosen setting of each row and column, what fewer settings would give, and the rates that work.

The rule that chooses a run's round (``select_by``) chooses the settings as well: by the mean over seeds of the accuracy
on held-out training data for ``val`` and ``val-tail``, else by that of the metric. A row that tried more settings than
another could win by them alone, so the rows of a column choose among the settings that all of them tried. A column
without any keeps its settings as columns. Rows that were refined have equally many settings, and each chooses among its
own (``flbench.refinement``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING, Generic, TypeVar

from flbench.choices import ON_VALIDATION_DATA, SelectBy
from flbench.metric_specs import METRICS, value_of
from flbench.report.cells import Cell, grouped, rows_of, tick_of, with_columns
from flbench.report.stats import Summary, summarize
from flbench.report.tables import Axes, axes_for
from flbench.report.ticks import Tick, axis_value, place_label
from flbench.sweeps.layout import Layout

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")

#: Of fewer numbers each is an end: a choice among them is never marked as one at the edge of its grid.
FEWEST_OF_GRID = 3

#: A learning rate works where its mean is within this of the best one's: two points.
WITHIN = 0.02

#: Fewer learning rates than this have no range.
FEWEST_RATES = 3


@dataclass(frozen=True)
class OfKind:
    """The cells of one kind of experiment in a section, and what its tables show of them."""

    cells: pd.DataFrame  # every cell
    chosen: tuple[str, ...]  # the hyperparameters that are chosen; empty where nothing varies
    tried: tuple[tuple[Cell, ...], ...]  # the settings of each row and column, the best by the rule first
    shown: pd.DataFrame  # the best ones, which say how they were chosen; every cell where nothing is chosen
    axes: Axes  # those of ``shown``


def by_kind(cells: pd.DataFrame, layout: Layout) -> list[OfKind]:
    """Return the cells of a section by their kind of experiment, federated before centralized."""
    return [tune(cells[cells.kind == kind], layout) for kind in sorted({*cells.kind}, reverse=True)]


def tune(cells: pd.DataFrame, layout: Layout) -> OfKind:
    """Return cells of one kind with the settings of every row and column in the order of the rule, and the chosen one.

    Settings with missing seeds cannot be chosen; where no setting is complete, the one with the most seeds stands for
    all, so that the gap is shown. A hyperparameter that some rows lack is not tuned: each of its values is a row.
    Nothing is chosen where rows of a column have no setting in common.
    """
    chosen = tuple(axis for axis in layout.tune if all(one.has(axis) for one in cells.experiment))
    own = rows_of(cells)
    axes = axes_for(own, layout, chosen)
    refined = layout.search is not None and layout.search.refine is not None
    tried: list[tuple[Cell, ...]] = []
    most = 0
    for contest in grouped(own, axes.col):
        rows = grouped(contest, axes.row)
        settings_of = [{axes.col(cell, chosen) for cell in row} for row in rows]
        common = (set.union if refined else set.intersection)(*settings_of)
        if not common:
            return OfKind(cells, (), (), cells, axes_for(own, layout))
        most = max(most, *map(len, rows))
        shared = ([cell for cell in row if axes.col(cell, chosen) in common] for row in rows)
        tried += [_ranked(settings, chosen, layout.select_by) for settings in shared]
    if most <= 1:
        return OfKind(cells, (), (), cells, axes_for(own, layout))
    best = cells.loc[[settings[0].Index for settings in tried]]
    choices = [_choice(settings, chosen, layout.select_by) for settings in tried]
    text, at_edge, lost = zip(*choices, strict=True)
    shown = with_columns(best, chosen=text, at_edge=at_edge, lost=lost)
    return OfKind(cells, chosen, tuple(tried), shown, axes_for(rows_of(shown), layout, chosen))


def _ranked(settings: Sequence[Cell], axes: Sequence[str], select_by: SelectBy) -> tuple[Cell, ...]:
    """Return settings in the order of a rule: complete ones by their score, then the others by their finished seeds.

    Of those without finished seeds the ones that a search dropped are last.
    """

    def key(cell: Cell) -> tuple[bool, float, bool]:
        score = _score(cell, select_by)
        return score is None, -len(cell.values) if score is None else -score, cell.dropped is not None

    return tuple(sorted(sorted(settings, key=lambda cell: [tick_of(cell, axis) for axis in axes]), key=key))


def _choice(settings: Sequence[Cell], axes: Sequence[str], select_by: SelectBy) -> tuple[str, bool, bool]:
    """Return the columns ``chosen``, ``at_edge`` and ``lost`` of the first of ranked settings."""
    best, number = settings[0], len(settings)
    if number > 1 and _score(best, select_by) is None:
        lost = all(cell.dropped is not None or "diverged" in cell.gaps for cell in settings)
        return f"none complete of {number}", False, lost
    at_edge = any(_is_end(best, settings, axis) for axis in axes)
    parts = [place_label(axes, [tick_of(best, axis) for axis in axes])]
    parts += [f"best of {number}"] if number > 1 else []
    parts += ["edge of the grid"] if at_edge else []
    return ", ".join(parts), at_edge, False


def _is_end(best: Cell, settings: Sequence[Cell], axis: str) -> bool:
    """Return whether the value of an axis is its lowest or highest one, so that a better one may lie outside."""
    values = {axis_value(cell.experiment, axis) for cell in settings}
    if len(values) < FEWEST_OF_GRID or not all(isinstance(value, int | float) for value in values):
        return False
    return axis_value(best.experiment, axis) in (min(values), max(values))


def _score(cell: Cell, select_by: SelectBy) -> float | None:
    """Return the mean that ranks settings, larger is better; None where a seed has none."""
    name = "val_acc" if select_by in ON_VALIDATION_DATA else cell.metric
    summary = summarize([value for run in cell.runs if (value := value_of(run.record, name)) is not None])
    if summary is None or summary.n < cell.requested or not cell.complete:
        return None
    return -summary.mean if METRICS[name].lower_is_better else summary.mean


@dataclass(frozen=True)
class Rows(Generic[R]):
    """What was found for every row and column of one kind of experiment."""

    kind: str
    row_axes: tuple[str, ...]
    rows: tuple[R, ...]


@dataclass(frozen=True)
class Budget:
    """What a row in a column is expected to reach with a part of its settings.

    Of the K settings, k are drawn without replacement, and the one that the rule ranks first is reported. That is the
    i-th best of all K (i = 1, 2, ...) with probability C(K - i, k - 1) / C(K, k), so the expectation is an exact sum
    over settings. Settings that a refinement has added are not among them, since nothing draws these. A run that
    diverged counts with the accuracy of guessing, 1 / classes: its model answers with one class. Rows with runs that
    are missing for another reason have no curve.

    The unit is the seed: each has its own expectation, with the ranking of the settings held fixed, and the interval is
    Student's t over seeds. Rows share their seeds, so differences between them are smaller than their intervals
    suggest.
    """

    row: tuple[Tick, ...]  # the place on each row axis
    col: tuple[Tick, ...]  # the place on each column axis
    column: str  # label of the column
    curve: tuple[Summary, ...]  # the expected value over seeds for 1, 2, ... settings
    cell: Cell  # of the setting that is chosen


def budgets(kind: OfKind) -> list[Rows[Budget]]:
    """Return the curves of all rows with several settings; none where there are none, or the metric is no accuracy."""
    axes, found = kind.axes, []
    for cell, tried in zip(rows_of(kind.shown), kind.tried, strict=False):
        settings = [setting for setting in tried if not setting.refined]
        if METRICS[cell.metric].is_share and len(settings) > 1 and (curve := expected(settings)):
            col = axes.col(cell)
            found.append(Budget(axes.row(cell), col, place_label(axes.cols, col), curve, cell))
    found.sort(key=lambda one: (one.col, one.row))
    return [Rows(found[0].cell.kind, axes.rows, tuple(found))] if found else []


def expected(settings: Sequence[Cell]) -> tuple[Summary, ...]:
    """Return the expected value for 1, 2, ... of some ranked settings; empty where a run has no value to count."""
    by_setting = [_with_guesses(cell) for cell in settings]
    seeds = sorted(set().union(*by_setting))
    if not seeds or any(set(values) != set(seeds) for values in by_setting):
        return ()
    by_seed = [[values[seed] for values in by_setting] for seed in seeds]
    curve: list[Summary] = []
    for drawn in range(1, len(settings) + 1):
        shares = first_of_drawn(len(settings), drawn)
        means = [math.fsum(map(mul, shares, values)) for values in by_seed]
        curve += filter(None, [summarize(means)])
    return tuple(curve)


@lru_cache(1000)
def first_of_drawn(settings: int, drawn: int) -> tuple[float, ...]:
    """Return the probability of each of some ranked settings to be the first of ``drawn`` that are drawn.

    >>> first_of_drawn(3, 1), first_of_drawn(4, 2)
    ((0.3333333333333333, 0.3333333333333333, 0.3333333333333333), (0.5, 0.3333333333333333, 0.16666666666666666, 0.0))
    """
    draws = math.comb(settings, drawn)
    return tuple(math.comb(settings - i, drawn - 1) / draws for i in range(1, settings + 1))


def _with_guesses(cell: Cell) -> dict[int, float]:
    """Return the value of each seed, that of guessing for one that diverged; empty where another run has none."""
    classes = getattr(getattr(cell.experiment, "dataset", None), "classes", None)
    guess = 1 / classes if classes else None
    diverged = {run.experiment.seed: guess for run in cell.runs if run.state == "diverged" and guess is not None}
    return {**diverged, **cell.by_seed} if len(cell.by_seed) + len(diverged) == cell.requested else {}


@dataclass(frozen=True)
class Range:
    """The learning rates with which a row in a column works."""

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
    cells: tuple[Cell, ...] = field(compare=False, repr=False)  # one a rate, in ascending order

    @property
    def is_open(self) -> bool:
        """Whether it may be wider."""
        return self.open_low or self.open_high

    @property
    def decades(self) -> float:
        """The width of the range in powers of ten."""
        return decades_between(self.low, self.high)

    @property
    def decades_by_seed(self) -> dict[int, float]:
        """The width of the range by the values of each seed alone; empty where a run is missing."""
        if any(run.state not in ("done", "diverged") for cell in self.cells for run in cell.runs):
            return {}
        seeds = set.intersection(*({run.experiment.seed for run in cell.runs} for cell in self.cells))
        sign = _sign(self.cells[0])
        rates = [cell.experiment.lr for cell in self.cells]
        found = {}
        for seed in sorted(seeds):
            _, first, last = unbroken([sign * cell.by_seed.get(seed, -sign * math.inf) for cell in self.cells])
            found[seed] = decades_between(rates[first], rates[last])
        return found


def decades_between(low: float, high: float) -> float:
    """Return the powers of ten between two rates; equal ranges are equal, although rates are rounded to twelve digits.

    The test of ranks would count ranges that differ by the rounding alone as wider or narrower.

    >>> decades_between(0.01, 0.316227766017), decades_between(0.0316227766017, 1)
    (1.5, 1.5)
    """
    return round(math.log10(high / low), 9)


def ranges(cells: pd.DataFrame, layout: Layout) -> list[Rows[Range]]:
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
    return [Rows(own[0].kind, axes.rows, tuple(found))] if found else []


def _range(cells: Sequence[Cell], row: tuple[Tick, ...], column: str) -> Range:
    cells = sorted(cells, key=lambda cell: cell.experiment.lr)
    sign = _sign(cells[0])
    means = [sign * cell.summary.mean if cell.complete and cell.summary else -math.inf for cell in cells]
    best, first, last = unbroken(means)
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
        cells=tuple(cells),
    )


def _sign(cell: Cell) -> int:
    """Return 1 where larger values are better, else -1."""
    return -1 if METRICS[cell.metric].lower_is_better else 1


def unbroken(values: Sequence[float]) -> tuple[int, int, int]:
    """Return the place of the best of some values, the largest, and the ends of the range around it that works."""
    best = values.index(max(values))
    good = [math.isfinite(value) and round(values[best] - value, 9) <= WITHIN for value in values]
    first = last = best
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(values) - 1 and good[last + 1]:
        last += 1
    return best, first, last
