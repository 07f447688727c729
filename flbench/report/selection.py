"""Tuning: hyperparameters chosen by a named rule, among the same settings for every row of a column.

The rule that chooses a run's round (``select_by``) chooses the settings as well: by the mean over seeds of the accuracy
on held-out training data for ``val`` and ``val-tail``, else by that of the metric. A row that tried more settings than
another could win by them alone, so the rows of a column choose among the settings that all of them tried. A column
without any keeps its settings as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flbench.choices import ON_VALIDATION_DATA, SelectBy
from flbench.metric_specs import METRICS, value_of
from flbench.report.cells import Cell, grouped, rows_of, tick_of, with_columns
from flbench.report.stats import summarize
from flbench.report.tables import Axes, axes_for
from flbench.report.ticks import axis_value, place_label
from flbench.sweeps.layout import Layout

if TYPE_CHECKING:
    import pandas as pd

#: Of fewer numbers each is an end: a choice among them is never marked as one at the edge of its grid.
FEWEST_OF_GRID = 3


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
    tried: list[tuple[Cell, ...]] = []
    most = 0
    for contest in grouped(own, axes.col):
        rows = grouped(contest, axes.row)
        common = set.intersection(*({axes.col(cell, chosen) for cell in row} for row in rows))
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
