"""What the charts of a page show, as plain JSON: curves over rounds, the leaderboard's tables, settings and results.

``write/charts.js`` draws it. The size is bounded: curves have fewer points the more of them there are, and those of
single seeds are left out of large sweeps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from flbench.config import Training, headline_of
from flbench.metric_specs import METRICS
from flbench.report.cells import Cell, cells_of, grouped, merge_rows, rows_of, tick_of
from flbench.report.figures.style import COLORS, color_numbers
from flbench.report.parts import Part
from flbench.report.runs import Run, varied_methods
from flbench.report.tables import Table, kind_name, lay_out, varies
from flbench.report.ticks import Tick, axis_label, axis_names, axis_value, place_label, tick
from flbench.report.tuning import tune
from flbench.report.wording import gap_text, lines_below, mean_text, row_name
from flbench.sweeps.axes import SECTION, axes_of
from flbench.sweeps.layout import Layout

#: A metric by round.
Points = Mapping[int, float]

#: Numbers in all curves of a page at most, and the least and most points of a curve.
MOST_NUMBERS = 24_000
FEWEST_POINTS, MOST_POINTS = 8, 60

#: Runs above which a page has the curves of running seeds and of means alone.
MOST_SEEDS = 1_000


def charts(parts: Sequence[Part], points_of: Callable[[Run, str], Points]) -> dict[str, Any]:
    """Return the charts of some runs: a group for each data set and model, or kind of study.

    Args:
        parts: the runs with the report options of their sweeps.
        points_of: returns a metric of a run at the rounds that it has recorded so far; empty where there are none.
    """
    runs = [run for part in parts for run in part.collection.runs]
    varied = varied_methods(runs)
    curves = len(runs) * (len(runs) <= MOST_SEEDS) + len({run.cell for run in runs})
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_NUMBERS // max(1, curves)))
    groups = []
    for part in parts:
        named = [dataclasses.replace(run, varied=varied) for run in part.collection.runs]
        for members in grouped(named, _group):
            drawn = partial(_curves, points_of=points_of, most=most, with_seeds=len(runs) <= MOST_SEEDS)
            group = _group_json(members, part.layout.spelled_out(), drawn)
            sweeps = f" ({', '.join(part.sweeps)})" if len(parts) > 1 else ""
            groups.append({**group, "title": group["title"] + sweeps})
    return {"groups": groups, "colors": COLORS}


def _group(run: Run) -> tuple[str, Tick, Tick]:
    """Return what the runs of a group share: kind, data set and model."""
    dataset, model = (tick(name, axis_value(run.experiment, name)) for name in SECTION)
    return run.experiment.kind, dataset, model


def _axis_json(axis: str, ticks: Sequence[Tick]) -> dict[str, Any]:
    (name,), labels = axis_names([axis]), [at.label for at in ticks]
    numbers = color_numbers(labels)
    return {
        "name": name,
        "labels": labels,
        "long": [axis_label(axis, at) for at in ticks],
        "colors": [numbers[label] for label in labels],
    }


def _group_json(runs: Sequence[Run], layout: Layout, curves: Callable[[Cell], Mapping[str, Any]]) -> dict[str, Any]:
    kind, *place = _group(runs[0])
    is_training = isinstance(runs[0].experiment, Training)
    metric = layout.metric if is_training else headline_of(runs[0].experiment.to_json())
    frame = cells_of(runs, metric)
    tables: list[Table] = []
    if is_training:
        frame = merge_rows(frame, layout.rows)
        tuned = tune(frame, layout)
        tables = lay_out(tuned.shown, layout, chosen=tuned.chosen)
    cells = rows_of(frame)
    fields = axes_of(type(cell.experiment) for cell in cells)
    wanted = dict.fromkeys((*layout.rows, *layout.cols, *layout.tune, *fields))
    on_all = (axis for axis in wanted if all(axis == "data" or cell.experiment.has(axis) for cell in cells))
    axes = [axis for axis in on_all if varies(cells, axis)]
    ticks = {axis: sorted({tick_of(cell, axis, axes) for cell in cells}) for axis in axes}
    few = [axis for axis in axes if len(ticks[axis]) <= len(COLORS)]
    colored = max(reversed(few), key=lambda axis: (axis in layout.rows, len(ticks[axis])), default=None)
    known = METRICS[metric]
    title = ", ".join(at.label for at in place) if is_training else kind
    return {
        "title": f"{title} ({kind})" if is_training and kind_name(kind) else title,
        "metric": known.title,
        "percent": known.percent,
        "lower": known.lower_is_better,
        "axes": [_axis_json(axis, ticks[axis]) for axis in axes],
        "color": None if colored is None else axes.index(colored),
        "cells": [
            {
                "at": [ticks[axis].index(tick_of(cell, axis, axes)) for axis in axes],
                "value": _number(cell.summary.mean, metric) if cell.summary else None,
                "text": mean_text(cell),
                "seeds": cell.requested,
                "gaps": "" if cell.complete else gap_text(cell),
                **curves(cell),
            }
            for cell in cells
        ],
        "tables": [_table_json(table, [cell.key for cell in cells]) for table in tables],
    }


def _table_json(table: Table, keys: Sequence[Any]) -> dict[str, Any]:
    """Return a table; each position has the number of its cell, and the lines below its mean."""
    return {
        "title": table.title,
        "rows": [row_name(row) or "all" for row in table.rows],
        "cols": [place_label(table.col_axes, col) or METRICS[table.metric].title for col in table.cols],
        "cells": [[r, c, keys.index(cell.key), lines_below(cell)] for (r, c), cell in table.cells.items()],
    }


def _curves(cell: Cell, points_of: Callable[[Run, str], Points], most: int, *, with_seeds: bool) -> dict[str, Any]:
    """Return the curves of a cell: that of each seed, and the mean over the finished seeds, or over the running ones.

    The mean is at the rounds that all of these seeds have recorded.
    """
    known = [(run, points) for run in cell.runs if (points := points_of(run, cell.metric))]
    averaged = [points for run, points in known if run.state == "done"] or [points for _, points in known]
    rounds = _thinned({at for _, points in known for at in points}, most)
    common = [at for at in rounds if averaged and all(at in points for points in averaged)]
    means = {at: math.fsum(points[at] for points in averaged) / len(averaged) for at in common}
    shown = [(run, points) for run, points in known if len(known) > 1 and (with_seeds or run.state == "running")]
    return {
        "rounds": rounds,
        "mean": _series(means, rounds, cell.metric),
        "running": sum(run.state == "running" for run in cell.runs),
        "runs": [[run.experiment.seed, run.state, _series(points, rounds, cell.metric)] for run, points in shown],
    }


def _thinned(rounds: Iterable[int], most: int) -> list[int]:
    """Return at most ``most`` of the rounds, evenly chosen, the first and the last among them.

    >>> _thinned(range(0, 100, 10), 4)
    [0, 30, 60, 90]
    """
    found = sorted(rounds)
    if len(found) <= most:
        return found
    return [found[place * (len(found) - 1) // (most - 1)] for place in range(most)]


def _series(points: Points, rounds: Sequence[int], metric: str) -> list[float | None]:
    """Return the values at some rounds, up to the last known one; None for a round without a value."""
    values = [_number(points[at], metric) if at in points else None for at in rounds]
    while values and values[-1] is None:
        values.pop()
    return values


def _number(value: float, metric: str) -> float | None:
    """Return a value with few digits, shares in percent; None if it is not finite."""
    if not math.isfinite(value):
        return None
    return round(100 * value, 2) if METRICS[metric].percent else float(f"{value:.4g}")
