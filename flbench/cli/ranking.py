"""Which cells lead so far: the mean headline number of their finished runs, problem by problem.

It is for people who watch a sweep, not for the leaderboard: cells are ranked before all of their seeds have finished,
and the table says how many have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from rich.table import Table

from flbench.cli.curves import Curves, sparklines
from flbench.cli.numbers import value
from flbench.cli.screen import fitting, plain_table
from flbench.config import Experiment, canonical_json, headline_of, problem_of
from flbench.messages import counted
from flbench.metric_specs import METRICS
from flbench.progress import Progress, RunSnapshot
from flbench.run_names import NEVER_NAMED, Common, label
from flbench.store import Store
from flbench.sums import sum_in_order

#: Cells shown at most.
MOST_CELLS = 6


@dataclass
class Cell:
    """The finished runs of one cell.

    Attributes:
        problem: what it solves (``problem_of``) and its metric, as canonical JSON.
        values: of the runs that neither failed nor diverged, with their ids in ``run_ids``.
        planned: how many runs the plan has.
        metric: the number that is compared.
    """

    problem: str
    values: list[float] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    diverged: int = 0
    failed: int = 0
    planned: int = 0
    metric: str = "acc"

    @property
    def mean(self) -> float:
        """The mean of its finished runs, of which there must be one."""
        return sum_in_order(self.values) / len(self.values)

    @property
    def rank(self) -> float:
        """A key to sort by: the best cell has the least."""
        return self.mean if METRICS[self.metric].lower_is_better else -self.mean

    @property
    def progress(self) -> str:
        """How many runs the mean is of: ``2/3``, ``2/3, 1 diverged``."""
        bad = {"diverged": self.diverged, "failed": self.failed}
        return ", ".join([f"{len(self.values)}/{self.planned}", *(f"{n} {how}" for how, n in bad.items() if n)])

    def add(self, seen: RunSnapshot) -> None:
        """Count a run that has ended; one that was dropped has too few rounds to be compared."""
        if seen.outcome == "dropped":
            return
        if seen.outcome == "diverged":
            self.diverged += 1
        elif seen.state.status != "done":
            self.failed += 1
        elif seen.value is not None:
            self.values.append(seen.value)
            self.run_ids.append(seen.run_id)

    def merge(self, other: Cell) -> None:
        """Add the runs of the same cell from another part of the plan."""
        self.values += other.values
        self.run_ids += other.run_ids
        self.diverged += other.diverged
        self.failed += other.failed


class Ranking:
    """The cells of a plan, or of a part of it, as its runs end.

    Args:
        cell_ids: the cell of each run of the plan.
        experiment_of: returns the experiment of a run of the plan as plain JSON; called once per cell.

    Attributes:
        cells: those of which a run has ended, by id.
        planned: number of runs of each cell.
    """

    def __init__(self, cell_ids: Sequence[str], experiment_of: Callable[[int], Mapping[str, Any]]) -> None:
        self._cell_ids, self._experiment_of = cell_ids, experiment_of
        self.planned = Counter(cell_ids)
        self._counted = 0
        self.cells: dict[str, Cell] = {}

    def update(self, ended: Mapping[int, RunSnapshot]) -> None:
        """Count the runs that were added to ``Progress.ended`` since the last call."""
        for index, seen in islice(ended.items(), self._counted, None):
            cell_id = self._cell_ids[index]
            if cell_id not in self.cells:
                experiment = self._experiment_of(index)
                metric = headline_of(experiment)
                problem = canonical_json({**problem_of(experiment), "metric": metric})
                self.cells[cell_id] = Cell(problem, planned=self.planned[cell_id], metric=metric)
            self.cells[cell_id].add(seen)
        self._counted = len(ended)


@dataclass(frozen=True)
class Best:
    """The leading cells, and the number of problems for which there was no room."""

    cells: list[Cell]
    hidden: int


def best(cells: Iterable[Cell], most: int) -> Best:
    """Return the leading cells of each problem, the best first, ``most`` in all; problems in the order of the cells."""
    problems: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.values:
            problems.setdefault(cell.problem, []).append(cell)
    shown = list(problems)[:most]
    each = most // max(1, len(shown))
    leaders = [cell for name in shown for cell in sorted(problems[name], key=lambda cell: cell.rank)[:each]]
    return Best(leaders, len(problems) - len(shown))


def names(experiment: Mapping[str, Any], common: Common) -> tuple[str, str]:
    """Return the names of a cell's problem and of its contender in it, without the fields of ``common``."""
    problem = problem_of(experiment)
    return label(experiment, common, problem), label(experiment, common, experiment.keys() - problem - {"seed"})


def common_names(experiments: Sequence[Experiment]) -> Common:
    """Return, by kind, the fields in which these experiments agree."""
    kinds: dict[str, list[Experiment]] = {}
    for one in experiments:
        kinds.setdefault(one.kind, []).append(one)
    return {kind: _agreed(alike) - ({"kind"} if len(kinds) > 1 else set()) for kind, alike in kinds.items()}


def _agreed(alike: Sequence[Experiment]) -> set[str]:
    """Return the fields in which experiments of one kind agree."""
    first = alike[0]
    agreed = set()
    for name in set(type(first).model_fields) - NEVER_NAMED:
        value, others = getattr(first, name), (getattr(one, name) for one in alike)
        # The runs of a sweep share their components: comparing identities first is much faster.
        if all(other is value or other == value for other in others):
            agreed.add(name)
    return agreed


class Overview:
    """What the live display shows of a sweep besides its progress: curves, and the leading cells."""

    def __init__(self, ranking: Ranking, curves: Curves, names_of: Callable[[str], tuple[str, str]]) -> None:
        self._ranking, self.curves, self._names_of = ranking, curves, names_of

    @classmethod
    def of(cls, store: Store, experiments: Sequence[Experiment]) -> Self:
        """Return the overview of a sweep's experiments, in the order of its plan."""
        ranking = Ranking([one.cell_id for one in experiments], lambda index: experiments[index].to_json())
        by_id = {one.run_id: one for one in experiments}
        common = common_names(experiments)
        return cls(ranking, Curves(store), lambda run_id: names(by_id[run_id].to_json(), common))

    def leaders(self, progress: Progress, most: int) -> list[Table]:
        """Return tables of the best cells so far, one for each metric; none while no run has finished."""
        self._ranking.update(progress.ended)
        return cells_tables(best(self._ranking.cells.values(), most), self.curves, self._names_of)


def cells_tables(
    found: Best, curves: Curves, names_of: Callable[[str], tuple[str, str]], title: str = "best cells so far"
) -> list[Table]:
    """Return tables of some cells, one for each metric; ``names_of`` returns the problem and contender of a run."""
    tables: list[Table] = []
    for metric in dict.fromkeys(cell.metric for cell in found.cells):
        more = f" (and {counted(found.hidden, 'more problem')})" if found.hidden and not tables else ""
        cells = [cell for cell in found.cells if cell.metric == metric]
        scale, lines = sparklines([curves.of_runs(cell.run_ids, metric) for cell in cells], metric=metric)
        rows = [(cell, *names_of(cell.run_ids[0])) for cell in cells]
        has_problems = any(problem for _, problem, _ in rows)
        table = plain_table([title + more, *(["on"] if has_problems else [])])
        table.add_column("runs", no_wrap=True)
        table.add_column(METRICS[metric].title, justify="right", no_wrap=True)
        table.add_column(scale, no_wrap=True)
        for (cell, problem, contender), line in zip(rows, lines, strict=True):
            called = (contender, problem) if has_problems else (contender,)
            table.add_row(*map(fitting, called), cell.progress, value(metric, cell.mean), line)
        tables.append(table)
    return tables
