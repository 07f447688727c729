"""Tuning: hyperparameters chosen by a named rule, among the same settings for every row of a column.

The rule that chooses a run's round (``select_by``) chooses the settings as well: by the mean over seeds of the accuracy
on held-out training data for ``val`` and ``val-tail``, else by that of the metric. A row that tried more settings than
another could win by them alone, so the rows of a column choose among the settings that all of them tried. A column
without any keeps its settings as columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from flbench.choices import ON_VALIDATION_DATA, SelectBy
from flbench.metric_specs import METRICS, value_of
from flbench.report.cells import Cell, grouped, summarize
from flbench.report.tables import Axes, Layout, axes_for
from flbench.report.ticks import axis_value, place_label

#: Of fewer numbers each is an end: a choice among them is never marked as one at the edge of its grid.
FEWEST_OF_GRID = 3


@dataclass(frozen=True)
class Tuned:
    """The hyperparameters that were chosen; everything is empty where nothing varies."""

    axes: tuple[str, ...] = ()
    tried: tuple[tuple[Cell, ...], ...] = ()  # the settings of each row and column, the best by the rule first
    cells: tuple[Cell, ...] = ()  # the first of each, whose ``chosen`` says what it is


@dataclass(frozen=True)
class OfKind:
    """The cells of one kind of experiment in a section, and what its tables show of them."""

    cells: Sequence[Cell]
    tuned: Tuned
    axes: Axes  # those of ``shown``

    @property
    def shown(self) -> Sequence[Cell]:
        """The cells with chosen settings; all where nothing is chosen."""
        return self.tuned.cells or self.cells


def by_kind(cells: Sequence[Cell], layout: Layout) -> list[OfKind]:
    """Return the cells of a section by their kind of experiment, federated before centralized."""
    found = []
    for kind in sorted({cell.experiment.kind for cell in cells}, reverse=True):
        members = [cell for cell in cells if cell.experiment.kind == kind]
        tuned = tune(members, layout)
        found.append(OfKind(members, tuned, axes_for(tuned.cells or members, layout, tuned.axes)))
    return found


def tune(cells: Sequence[Cell], layout: Layout) -> Tuned:
    """Return the settings of every row and column in the order of the rule, and the chosen one.

    Settings with missing seeds cannot be chosen; where no setting is complete, the one with the most seeds stands for
    all, so that the gap is shown. A hyperparameter that some rows lack is not tuned: each of its values is a row.
    Nothing is chosen where rows of a column have no setting in common.
    """
    chosen = tuple(axis for axis in layout.tune if all(cell.experiment.has(axis) for cell in cells))
    axes = axes_for(cells, layout, chosen)
    tried: list[tuple[Cell, ...]] = []
    most = 0
    for contest in grouped(cells, axes.col):
        rows = grouped(contest, axes.row)
        common = set.intersection(*({axes.col(cell, chosen) for cell in row} for row in rows))
        if not common:
            return Tuned()
        most = max(most, *map(len, rows))
        shared = ([cell for cell in row if axes.col(cell, chosen) in common] for row in rows)
        tried += [_ranked(settings, chosen, layout.select_by) for settings in shared]
    best = tuple(_chosen(settings, chosen, layout.select_by) for settings in tried)
    return Tuned(chosen, tuple(tried), best) if most > 1 else Tuned()


def _ranked(settings: Sequence[Cell], axes: Sequence[str], select_by: SelectBy) -> tuple[Cell, ...]:
    """Return settings in the order of a rule: complete ones by their score, then the others by their finished seeds.

    Of those without finished seeds the ones that a search dropped are last.
    """

    def key(cell: Cell) -> tuple[bool, float, bool]:
        score = _score(cell, select_by)
        return score is None, -len(cell.values) if score is None else -score, cell.dropped is not None

    return tuple(sorted(sorted(settings, key=lambda cell: [cell.tick(axis) for axis in axes]), key=key))


def _chosen(settings: Sequence[Cell], axes: Sequence[str], select_by: SelectBy) -> Cell:
    """Return the first of ranked settings, with the text that says how it was chosen."""
    best, number = settings[0], len(settings)
    if number > 1 and _score(best, select_by) is None:
        lost = all(cell.dropped is not None or "diverged" in cell.gaps for cell in settings)
        return dataclasses.replace(best, chosen=f"none complete of {number}", lost=lost)
    at_edge = any(_is_end(best, settings, axis) for axis in axes)
    parts = [place_label(axes, [best.tick(axis) for axis in axes])]
    parts += [f"best of {number}"] if number > 1 else []
    parts += ["edge of the grid"] if at_edge else []
    return dataclasses.replace(best, chosen=", ".join(parts), at_edge=at_edge)


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
