"""Tuning: hyperparameters chosen by a named rule, among the same settings for every row of a column.

The rule that chooses a run's round (``last``, ``val``, ``oracle``) chooses the settings as well: by the mean over seeds
of the accuracy on held-out training data for ``val``, else by that of the metric. A row that tried more settings than
another could win by them alone, so the rows of a column choose among the settings that all of them tried. A column
without any keeps its settings as columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from flbench.metric_specs import METRICS, value_of
from flbench.report.cells import Cell, grouped, summarize
from flbench.report.tables import Layout, axes_for, has_axis
from flbench.report.ticks import place_label


def tune(cells: Sequence[Cell], layout: Layout) -> tuple[tuple[str, ...], list[Cell]]:
    """Return the chosen hyperparameters, and the chosen cell of every row and column, whose ``chosen`` says what it is.

    Settings with missing seeds cannot be chosen; where no setting is complete, the one with the most seeds stands for
    all, so that the gap is shown. A hyperparameter that some rows lack is not tuned: each of its values is a row.
    Both are empty where nothing varies, or where rows of a column have no setting in common.
    """
    chosen = tuple(axis for axis in layout.tune if all(has_axis(cell.experiment, axis) for cell in cells))
    axes = axes_for(cells, layout, chosen)
    winners: list[Cell] = []
    most = 0
    for contest in grouped(cells, axes.col):
        rows = grouped(contest, axes.row)
        common = set.intersection(*({axes.col(cell, chosen) for cell in row} for row in rows))
        if not common:
            return (), []
        most = max(most, *map(len, rows))
        shared = ([cell for cell in row if axes.col(cell, chosen) in common] for row in rows)
        winners += [_choose(settings, chosen, layout.select_by) for settings in shared]
    return (chosen, winners) if most > 1 else ((), [])


def _choose(settings: Sequence[Cell], axes: Sequence[str], select_by: str) -> Cell:
    ordered = sorted(settings, key=lambda cell: [cell.tick(axis) for axis in axes])
    scored = [(score, cell) for cell in ordered if (score := _score(cell, select_by)) is not None]
    if not scored and len(ordered) > 1:
        fullest = max(ordered, key=lambda cell: len(cell.values))
        return dataclasses.replace(fullest, chosen=f"none complete of {len(ordered)}")
    best = max(scored, key=lambda pair: pair[0])[1] if scored else ordered[0]
    what = place_label(axes, [best.tick(axis) for axis in axes])
    return dataclasses.replace(best, chosen=what if len(ordered) == 1 else f"{what}, best of {len(ordered)}")


def _score(cell: Cell, select_by: str) -> float | None:
    """Return the mean that ranks settings, larger is better; None where a seed has none."""
    name = "val_acc" if select_by == "val" else cell.metric
    summary = summarize([value for run in cell.runs if (value := value_of(run.record, name)) is not None])
    if summary is None or summary.n < cell.requested or not cell.complete:
        return None
    return -summary.mean if METRICS[name].lower_is_better else summary.mean
