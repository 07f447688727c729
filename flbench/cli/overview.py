"""The best cells so far, as a table for terminals: of a sweep that runs, or of a store that is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from rich.table import Table

from flbench.cli.drawing import fitting, plain_table
from flbench.cli.numbers import value
from flbench.cli.sparkline import Curves, sparklines
from flbench.cli.standings import Best, Cell, Standings, best, common_names, names
from flbench.metric_specs import METRICS
from flbench.progress import Progress

if TYPE_CHECKING:
    from flbench.config import Experiment
    from flbench.store import Store

#: Cells shown at most.
MOST_CELLS = 6


class Overview:
    """What the live table shows of a sweep besides how far it is: curves, and the cells that lead."""

    def __init__(self, standings: Standings, curves: Curves, names_of: Callable[[str], tuple[str, str]]) -> None:
        self._standings, self.curves, self._names_of = standings, curves, names_of

    @classmethod
    def of(cls, store: Store, experiments: Sequence[Experiment]) -> Self:
        """The overview of a sweep's experiments, in the order of its plan."""
        standings = Standings([one.cell_id for one in experiments], lambda index: experiments[index].to_json())
        by_id = {one.run_id: one for one in experiments}
        common = common_names(experiments)
        return cls(standings, Curves(store), lambda run_id: names(by_id[run_id].to_json(), common))

    def leaders(self, progress: Progress, most: int) -> list[Table]:
        """Tables of the best cells so far, one a headline number; none while no run has finished."""
        self._standings.update(progress.ended)
        return cells_table(best(self._standings.cells.values(), most), self.curves, self._names_of)


def cells_table(
    found: Best, curves: Curves, names_of: Callable[[str], tuple[str, str]], title: str = "best cells so far"
) -> list[Table]:
    """The tables of some cells, one a headline number; ``names_of`` a run's problem and contender."""
    tables: list[Table] = []
    for metric in dict.fromkeys(cell.metric for cell in found.cells):
        more = f" (and {found.hidden} more problems)" if found.hidden and not tables else ""
        cells = [cell for cell in found.cells if cell.metric == metric]
        tables.append(_table_of(metric, cells, curves, names_of, title + more))
    return tables


def _table_of(
    metric: str, cells: Sequence[Cell], curves: Curves, names_of: Callable[[str], tuple[str, str]], title: str
) -> Table:
    scale, lines = sparklines([curves.of_runs(cell.run_ids, metric) for cell in cells], metric=metric)
    rows = [(cell, *names_of(cell.run_ids[0])) for cell in cells]
    table = plain_table()
    table.add_column(title)
    has_problems = any(problem for _, problem, _ in rows)
    if has_problems:
        table.add_column("on")
    table.add_column("runs", no_wrap=True)
    table.add_column(METRICS[metric].title, justify="right", no_wrap=True)
    table.add_column(scale, no_wrap=True)
    for (cell, problem, contender), line in zip(rows, lines, strict=True):
        called = (contender, problem) if has_problems else (contender,)
        table.add_row(*map(fitting, called), cell.progress, value(metric, cell.mean), line)
    return table
