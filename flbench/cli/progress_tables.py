"""Tables of a plan's progress: the runs that are executed now, and the cells that lead so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from flbench.cli.curves import Curves, mixed_sparklines, sparklines
from flbench.cli.numbers import value
from flbench.cli.screen import fitting, label_cells, plain_table
from flbench.config import problem_of
from flbench.literal import visible
from flbench.messages import counted
from flbench.metric_specs import METRICS
from flbench.progress import Cell, Progress, RunSnapshot
from flbench.run_names import Common, label

#: Cells shown at most.
MOST_CELLS = 6


def running_table(
    runs: Sequence[RunSnapshot],
    curves: Curves,
    ids: Sequence[str] = (),
    more: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Return a row for each run that is executed: its name, round, newest number and curve.

    Args:
        runs: the runs.
        curves: what they have recorded.
        ids: their ids, which become the first column.
        more: further columns, by title.
    """
    title, values = headlines(runs)
    scale, lines = mixed_sparklines([(run.metric, curves.of_run(run.run_id, run.round, run.metric)) for run in runs])
    table = plain_table()
    labels = label_cells([run.label for run in runs])
    columns: dict[str, Iterable[Any]] = {"running": ids or labels}
    if ids:
        columns[""] = labels
    columns |= {"round": [f"{run.round}/{run.rounds}" for run in runs], title: values, scale: lines}
    columns |= more or {}
    for name, cells in columns.items():
        right = name in ("round", title, "attempt")
        table.add_column(name, justify="right" if right else "left", no_wrap=cells is not labels)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def headlines(shown: Sequence[RunSnapshot]) -> tuple[str, list[str]]:
    """Return a column of headline numbers with its title; runs of different metrics name theirs in each row."""
    metrics = {seen.metric for seen in shown}
    if len(metrics) == 1:
        return METRICS[shown[0].metric].title, [value(seen.metric, seen.value) for seen in shown]
    return "reached", [f"{seen.metric} {value(seen.metric, seen.value)}" for seen in shown]


def names(experiment: Mapping[str, Any], common: Common) -> tuple[str, str]:
    """Return the names of a cell's problem and of its contender in it, without the fields of ``common``."""
    problem = problem_of(experiment)
    return label(experiment, common, problem), label(experiment, common, experiment.keys() - problem - {"seed"})


def leading(cells: Iterable[Cell], most: int) -> tuple[list[Cell], int]:
    """Return the best cells of each problem, ``most`` in all, and the number of problems without room."""
    problems: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.values:
            problems.setdefault(cell.problem, []).append(cell)
    shown = list(problems)[:most]
    each = most // max(1, len(shown))
    best = [cell for name in shown for cell in sorted(problems[name], key=lambda cell: cell.rank)[:each]]
    return best, len(problems) - len(shown)


def best_cells(
    progress: Progress, curves: Curves, most: int = MOST_CELLS, title: str = "best cells so far"
) -> list[Table]:
    """Return tables of the leading cells, one for each metric; none while no run has finished."""
    leaders, hidden = leading(progress.cells, most)
    tables: list[Table] = []
    for metric in dict.fromkeys(cell.metric for cell in leaders):
        cells = [cell for cell in leaders if cell.metric == metric]
        scale, lines = sparklines([curves.of_runs(cell.run_ids, metric) for cell in cells], metric=metric)
        called = [names(progress.plan[cell.first].experiment, progress.common) for cell in cells]
        has_problems = any(problem for problem, _ in called)
        more = f" (and {counted(hidden, 'more problem')})" if hidden and not tables else ""
        table = plain_table([title + more, *(["on"] if has_problems else [])])
        table.add_column("runs", no_wrap=True)
        table.add_column(METRICS[metric].title, justify="right", no_wrap=True)
        table.add_column(scale, no_wrap=True)
        for cell, (problem, contender), line in zip(cells, called, lines, strict=True):
            name = [contender, problem] if has_problems else [contender]
            table.add_row(*map(fitting, name), cell.progress, value(metric, cell.mean), line)
        tables.append(table)
    return tables
