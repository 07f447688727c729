"""Which cells lead so far: the mean headline number of their finished runs, problem by problem.

It is for people who watch a sweep, not for the leaderboard: cells are ranked before all of their seeds are there, and
how many there are stands beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from flbench.config import REQUEST_FIELDS, Experiment, canonical_json, fields_of_all_kinds, headline_of
from flbench.metric_specs import METRICS
from flbench.progress import Seen
from flbench.run_names import Common, label

#: What is to be solved; cells compete with each other only where they agree in it.
PROBLEM = (
    *("kind", "dataset", "model", "partition", "min_size", "clients", "participation"),
    *("activation", "width", "layers", "depth", "outputs", "samples", "sigma_w2", "sigma_b2", "gamma"),
)
CONTENDER = frozenset(fields_of_all_kinds()) - {*PROBLEM, "seed"}


@dataclass
class Cell:
    """The finished runs of one cell.

    Attributes:
        problem: what it competes in, and by which number, as canonical JSON.
        values: of the runs that neither failed nor diverged, with their ids in ``run_ids``.
        planned: how many runs are requested.
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
        return sum(self.values) / len(self.values)

    @property
    def rank(self) -> float:
        """Less for what is better."""
        return self.mean if METRICS[self.metric].lower_is_better else -self.mean

    @property
    def progress(self) -> str:
        """How many runs the mean is of: ``2/3``, ``2/3, 1 diverged``."""
        bad = {"diverged": self.diverged, "failed": self.failed}
        return ", ".join([f"{len(self.values)}/{self.planned}", *(f"{n} {how}" for how, n in bad.items() if n)])

    def add(self, seen: Seen) -> None:
        """Count a run that has come to its end."""
        if seen.outcome == "diverged":
            self.diverged += 1
        elif seen.state.status != "done":
            self.failed += 1
        elif seen.value is not None:
            self.values.append(seen.value)
            self.run_ids.append(seen.run_id)

    def join(self, other: Cell) -> None:
        """Take over what another part of the plan knows of the same cell."""
        self.values += other.values
        self.run_ids += other.run_ids
        self.diverged += other.diverged
        self.failed += other.failed


class Standings:
    """The cells of a plan, or of a part of it, as its runs come to their end.

    Args:
        cell_ids: the cell of each run of the plan.
        experiment_of: the experiment of a run of the plan as plain JSON; asked once a cell.

    Attributes:
        cells: those of which a run has ended, by id.
        planned: how many runs there are of each cell.
    """

    def __init__(self, cell_ids: Sequence[str], experiment_of: Callable[[int], Mapping[str, Any]]) -> None:
        self._cell_ids, self._experiment_of = cell_ids, experiment_of
        self.planned = Counter(cell_ids)
        self._told = 0
        self.cells: dict[str, Cell] = {}

    def update(self, ended: Mapping[int, Seen]) -> None:
        """Count what has been added to ``Progress.ended`` since the last time."""
        for index, seen in islice(ended.items(), self._told, None):
            cell_id = self._cell_ids[index]
            if cell_id not in self.cells:
                experiment = self._experiment_of(index)
                metric = headline_of(experiment)
                problem = canonical_json({name: experiment.get(name) for name in PROBLEM} | {"metric": metric})
                self.cells[cell_id] = Cell(problem, planned=self.planned[cell_id], metric=metric)
            self.cells[cell_id].add(seen)
        self._told = len(ended)


@dataclass(frozen=True)
class Best:
    """The cells that lead, and how many problems have none shown for want of room."""

    cells: list[Cell]
    hidden: int


def best(cells: Iterable[Cell], most: int) -> Best:
    """The leading cells of each problem, the best first, ``most`` in all; problems in the order of the cells."""
    problems: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.values:
            problems.setdefault(cell.problem, []).append(cell)
    shown = list(problems)[:most]
    each = most // max(1, len(shown))
    leaders = [cell for name in shown for cell in sorted(problems[name], key=lambda cell: cell.rank)[:each]]
    return Best(leaders, len(problems) - len(shown))


def names(experiment: Mapping[str, Any], common: Common) -> tuple[str, str]:
    """What a cell's problem, and what in it competes, is called; ``common`` is what needs no name."""
    return label(experiment, common, PROBLEM), label(experiment, common, CONTENDER)


def common_names(experiments: Sequence[Experiment]) -> Common:
    """By kind, the fields in which these experiments agree."""
    kinds: dict[str, list[Experiment]] = {}
    for one in experiments:
        kinds.setdefault(one.kind, []).append(one)
    return {kind: _agreed(alike) - ({"kind"} if len(kinds) > 1 else set()) for kind, alike in kinds.items()}


def _agreed(alike: Sequence[Experiment]) -> set[str]:
    """The fields in which experiments of one kind agree."""
    first = alike[0]
    names = set(type(first).model_fields) - REQUEST_FIELDS
    return {name for name in names if all(_same(getattr(one, name), getattr(first, name)) for one in alike)}


def _same(value: Any, other: Any) -> bool:
    # The runs of a sweep share their components: nearly always there is nothing to compare.
    return value is other or bool(value == other)
