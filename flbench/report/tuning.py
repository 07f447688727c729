"""Hyper-parameters chosen by a named rule, from as many settings for every row.

The rule that chooses a run's round (``last``, ``val``, ``oracle``) chooses the settings, too: by the mean over seeds of
the accuracy on held-out training data where the rule is ``val``, else by that of the metric itself. A row that tried
more settings than another would win by luck alone, so every row of a contest has the budget of the row that tried
fewest: of the others, that many settings are drawn by a fixed rule. Settings whose seeds are not all there use up the
budget and cannot be chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from flbench.report.cells import Cell, axis_label, grouped
from flbench.report.numbers import METRICS, value_of
from flbench.report.stats import summarize
from flbench.report.tables import anywhere, has_axis, other_axes, ticks, varies
from flbench.streams import stream

#: Chosen where a report does not say what.
USUAL = ("lr",)


def tune(
    cells: Sequence[Cell], rows: Sequence[str], cols: Sequence[str], axes: Sequence[str], select_by: str
) -> list[Cell]:
    """The chosen cell of every row and column, with what was chosen in its ``chosen``; none where nothing varies.

    Where no setting is complete, the one with the most seeds stands for all, so that the gap is seen.

    Args:
        cells: cells of one kind, data set and model.
        rows: axes of the rows.
        cols: axes of the columns; what else varies is a column, too.
        axes: the hyper-parameters.
        select_by: the rule.
    """
    axes = [axis for axis in axes if anywhere(cells, axis)]
    row_axes, col_axes = ([axis for axis in of if axis not in axes and anywhere(cells, axis)] for of in (rows, cols))
    named = (*row_axes, *col_axes, *axes)
    col_axes += other_axes(cells, named)
    winners, most = [], 0
    for contest in grouped(cells, lambda cell: ticks(cell, col_axes, named)):
        tried = grouped(contest, lambda cell: ticks(cell, row_axes, named))
        fewest = min(tried, key=len)
        shared = [axis for axis in axes if varies(fewest, axis)]
        most = max(most, *map(len, tried))
        winners += [_choose(_draw(settings, shared, len(fewest)), len(settings), axes, select_by) for settings in tried]
    return winners if most > 1 else []


def _draw(settings: Sequence[Cell], shared: Sequence[str], budget: int) -> list[Cell]:
    """As many settings as the budget allows: of each value of the ``shared`` axes equally many, by a fixed rule.

    So a method with one hyper-parameter more than others has all their learning rates, each with one value of its own.
    """
    groups = grouped(settings, lambda cell: ticks(cell, shared, ()))
    places = stream(0, "tuning budget").permutation(len(groups)).tolist()
    turns = []
    for place, members in zip(places, groups, strict=True):
        order = stream(0, "tuning budget", place + 1).permutation(len(members)).tolist()
        turns += [(turn, place, members[index]) for turn, index in enumerate(order)]
    return [cell for _, _, cell in sorted(turns, key=lambda drawn: drawn[:2])[:budget]]


def _choose(drawn: Sequence[Cell], tried: int, axes: Sequence[str], select_by: str) -> Cell:
    ordered = sorted(drawn, key=lambda cell: [cell.tick(axis) for axis in axes])
    scored = [(score, cell) for cell in ordered if (score := _score(cell, select_by)) is not None]
    budget = f"{len(drawn)}" if len(drawn) == tried else f"{len(drawn)} drawn from {tried}"
    if not scored:
        fullest = max(ordered, key=lambda cell: len(cell.values))
        return dataclasses.replace(fullest, chosen=f"none complete of {budget}")
    _, best = max(scored, key=lambda pair: pair[0])
    what = ", ".join(axis_label(axis, best.tick(axis)) for axis in axes if has_axis(best.experiment, axis))
    return dataclasses.replace(best, chosen=f"{what}, best of {budget}")


def _score(cell: Cell, select_by: str) -> float | None:
    """The mean by which settings are chosen, larger is better; None where a seed has none."""
    name = "val_acc" if select_by == "val" else cell.metric
    values = [value for run in cell.runs if (value := value_of(run.record, name)) is not None]
    summary = summarize(values)
    if summary is None or summary.n < cell.wished or not cell.complete:
        return None
    return -summary.mean if METRICS[name].lower_is_better else summary.mean
