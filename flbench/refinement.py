"""Refinement of a tuned rate: which values are tried around the best one. Pure: a function of values at the last round.

A step tries two new values for every row of a column: halfway, on a log scale, to each neighbour of the row's best
value. Where the best is at an end of the grid, the step goes outward there, by the grid's own spacing. A further step
follows while one of the rows needs it, for all rows of the column: so their budgets stay equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeVar, get_args

from flbench.config import Experiment, InvalidExperiment, canonical_json, parse_experiment, problem_of

#: What names one run.
K = TypeVar("K")

#: How well a candidate does: minus the seeds that it lost, and the mean of the others; larger is better.
Score = tuple[float, float]

#: When a column takes no further step.
Until = Literal["gain", "flat"]

#: Digits to which scores are compared: those of two candidates with equal sums may differ in the last bits.
DIGITS = 9

#: Most steps that a sweep may request: the last ones tell rates apart that differ by a thousandth.
MAX_STEPS = 10


def written(value: float) -> float:
    """Return a computed value with 12 digits: 0.1 for 0.10000000000000002, which would be another run."""
    return float(f"{value:.12g}")


@dataclass(frozen=True)
class Refinement:
    """The ``refine`` section of a search, with all defaults replaced.

    Attributes:
        axis: the field that is refined, ``lr`` or a setting such as ``method.mu``; its values are positive.
        margin: a step that gains less in every row of a column is the last one; in the unit of the search's metric.
        max_steps: a column takes at most as many.
        until: ``gain``: no row gains the margin; ``flat``: moreover both neighbours of each row's best value are worse
            by less than the margin.
        cols: fields that make a column, beside those of the problem.
    """

    axis: str
    margin: float
    max_steps: int
    until: Until
    cols: tuple[str, ...]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Return what was written as JSON; raises ValueError, TypeError or KeyError for anything else."""
        margin, most, until = float(raw["margin"]), int(raw["max_steps"]), raw["until"]
        refine = cls(str(raw["axis"]), margin, most, until, tuple(map(str, raw["cols"])))
        if not (0 < margin < math.inf and 1 <= most <= MAX_STEPS and until in get_args(Until)):
            raise ValueError(f"not a refinement: {raw!r:.200}")
        return refine

    def column_of(self, experiment: Mapping[str, Any]) -> str:
        """Return the column of an experiment (plain JSON): its problem, and the values that its report compares."""
        fields = (path.partition(".") for path in self.cols)
        values = [
            raw.get(setting) if setting and isinstance(raw := experiment.get(field), Mapping) else experiment.get(field)
            for field, _, setting in fields
        ]
        return canonical_json([problem_of(experiment), values])

    def value_of(self, experiment: Mapping[str, Any]) -> Any:
        """Return the refined value of an experiment (plain JSON); None where it has no such field."""
        field, _, setting = self.axis.partition(".")
        parsed = getattr(parse_experiment(experiment), field, None)
        return getattr(parsed, setting, None) if setting else parsed

    def having(self, experiment: Mapping[str, Any], value: float) -> Experiment | None:
        """Return an experiment (plain JSON) with another value; None where it cannot have it, as a momentum of 3."""
        field, _, setting = self.axis.partition(".")
        try:
            return parse_experiment({**experiment, field: {**experiment[field], setting: value} if setting else value})
        except InvalidExperiment:
            return None

    def refine(
        self,
        grids: Sequence[Mapping[float, Sequence[K]]],
        score: Callable[[int, float, Sequence[K]], Score | None],
        make: Callable[[K, float], K | None],
    ) -> Column[K]:
        """Return the candidates that the rows of a column get, as far as the results decide.

        The rows wait for each other: a step begins when all runs of the last one have ended.

        Args:
            grids: the seeds of each candidate by its value, for each row.
            score: returns how well a candidate of a row does at the last round; None while it has not ended.
            make: returns a run with another value; None where no experiment can have it.
        """
        column: Column[K] = Column(tuple(dict(grid) for grid in grids), self.max_steps)
        before: list[Score] = []
        while True:
            scores: list[dict[float, Score]] = []
            for number, row in enumerate(column.rows):
                scores.append({})
                for value, seeds in row.items():
                    if (found := score(number, value, seeds)) is None:
                        return column
                    scores[-1][value] = found
            bests = [_best(row) for row in scores]
            after = [row[best] for row, best in zip(scores, bests, strict=True)]
            ends = column.steps and not any(map(self._gains, before, after))
            if self.until == "flat":
                ends = ends and all(map(self._is_flat, scores, bests))
            if ends or column.steps == self.max_steps:
                column.most_steps = column.steps
                return column
            for row, grid, best in zip(column.rows, grids, bests, strict=True):
                for value in around(best, [*row], [*grid]):
                    made = [make(run, value) for run in row[best]]
                    if seeds := [run for run in made if run is not None]:
                        row[value] = seeds
                        column.added += seeds
            column.steps += 1
            before = after

    def _gains(self, before: Score, after: Score) -> bool:
        return after[0] > before[0] or round(after[1] - before[1], DIGITS) >= self.margin

    def _is_flat(self, scores: Mapping[float, Score], best: float) -> bool:
        """Return whether the best value has neighbours on both sides that are worse by less than the margin."""
        known = sorted(scores)
        at = known.index(best)
        beside = known[max(0, at - 1) : at] + known[at + 1 : at + 2]
        return len(beside) == 2 and not any(self._gains(scores[value], scores[best]) for value in beside)


def _best(scores: Mapping[float, Score]) -> float:
    """Return the value with the best score; of equal ones the least, since smaller rates diverge later."""
    return max(scores, key=lambda value: (scores[value], -value))


@dataclass
class Column(Generic[K]):
    """The rows of a column as far as they are refined.

    Attributes:
        rows: the seeds of each candidate by its value; those of the grid come first.
        most_steps: how many steps it takes at most, as far as the results decide.
        steps: how many have begun.
        added: the runs of the candidates beyond the grid, in the order of the steps.
    """

    rows: tuple[dict[float, Sequence[K]], ...]
    most_steps: int
    steps: int = 0
    added: list[K] = field(default_factory=list)

    @property
    def to_come(self) -> int:
        """How many runs further steps may add at most."""
        seeds = (max(map(len, row.values())) for row in self.rows)
        # exact: whole numbers
        return 2 * (self.most_steps - self.steps) * sum(seeds)


def around(best: float, tried: Sequence[float], grid: Sequence[float]) -> list[float]:
    """Return the two values that a step tries around the best of those that were tried.

    >>> around(0.1, [0.01, 0.1, 1], [0.01, 0.1, 1])
    [0.0316227766017, 0.316227766017]
    >>> around(1, [0.01, 0.1, 1], [0.01, 0.1, 1])
    [0.316227766017, 10.0]
    """
    known, ends = sorted(tried), sorted(grid)
    at = known.index(best)
    below = math.sqrt(known[at - 1]) * math.sqrt(best) if at else best * (ends[0] / ends[1])
    above = math.sqrt(known[at + 1]) * math.sqrt(best) if best < known[-1] else best * (ends[-1] / ends[-2])
    return [written(below), written(above)]
