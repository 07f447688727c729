"""Successive halving: which settings of a tuned field go on after each rung. Pure: a function of values at the rungs.

A race is a cell of the report without the tuned fields: its candidates solve one problem (``Experiment.problem``) and
differ in nothing else, and their seeds are averaged. Every candidate is trained to the first rung, the best share of
them to the next, and so on. Races with different numbers of rounds have different rungs.

Jamieson and Talwalkar (2016), "Non-stochastic best arm identification and hyperparameter optimization", AISTATS.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, Self

from flbench.config import REQUEST_FIELDS, Experiment, canonical_json, problem_of
from flbench.metric_specs import METRICS, Record, value_of
from flbench.refinement import DIGITS, Column, K, Refinement, Score


@dataclass(frozen=True)
class Halving:
    """The ``search`` section of a sweep, with all defaults replaced.

    Attributes:
        axes: the tuned fields, ``lr`` or settings such as ``method.mu``.
        rungs: of each number of rounds that the runs have, increasing; the last is that number, and without halving
            the only one.
        keep: the share of a race's candidates that a rung keeps.
        metric: what ranks them.
        tail: how many evaluations up to a rung are averaged for it; where fewer were recorded, the last one counts.
        refine: which values are tried around the best of those that are trained to the end; None: no others.
    """

    axes: tuple[str, ...]
    rungs: tuple[tuple[int, ...], ...]
    keep: Fraction
    metric: str
    tail: int = 1
    refine: Refinement | None = None

    @property
    def halves(self) -> bool:
        """Whether settings are dropped before the last round."""
        return any(len(rungs) > 1 for rungs in self.rungs)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` wrote; raises ValueError, TypeError or KeyError for anything else."""
        refine = Refinement.from_json(raw["refine"]) if "refine" in raw else None
        rungs, keep, tail = tuple(map(tuple, raw["rungs"])), Fraction(raw["keep"]), int(raw.get("tail", 1))
        search = cls(tuple(raw["axes"]), rungs, keep, raw["metric"], tail, refine)
        increasing = all(rungs and [*rungs] == sorted({int(rung) for rung in rungs}) for rungs in search.rungs)
        if not (search.rungs and increasing and 0 < search.keep < 1 and search.metric in METRICS and search.tail > 0):
            raise ValueError(f"not a search: {raw!r:.200}")
        return search

    def to_json(self) -> dict[str, Any]:
        """Return the search as plain JSON, without what it does not use: the names of plans depend on it."""
        raw = dataclasses.asdict(self) | {"keep": str(self.keep)}
        unused = {"tail": self.tail == 1, "refine": self.refine is None}
        return {name: value for name, value in raw.items() if not unused.get(name)}

    def sizes(self, race: Race[K]) -> list[int]:
        """Return how many of a race's candidates are trained to each rung, without ties.

        >>> Halving(("lr",), ((10, 30, 100),), Fraction(1, 3), "val_acc").sizes(Race((10, 30, 100), [[0]] * 7))
        [7, 3, 1]
        """
        return [math.ceil(len(race.candidates) * self.keep**index) for index in range(len(race.rungs))]

    def expected_rounds(self, race: Race[K], standings: Sequence[Standing] = ()) -> int:
        """Return the rounds of all runs of a race: of its standings so far, and without ties from there on.

        >>> race = Race((10, 30, 100), [[0], [1], [2]])
        >>> Halving(("lr",), (race.rungs,), Fraction(1, 3), "val_acc").expected_rounds(race)
        120
        """
        standings = standings or race.start
        # exact: whole numbers
        decided = sum(standing.rung * len(seeds) for standing, seeds in zip(standings, race.candidates, strict=True))
        now = max(standing.rung for standing in standings if not standing.dropped)
        seeds = Fraction(sum(map(len, race.candidates)), len(race.candidates))  # exact: whole numbers
        ahead = zip(self.sizes(race)[1:], race.rungs, race.rungs[1:], strict=False)
        # exact: whole numbers
        return decided + round(seeds * sum(size * (after - rung) for size, rung, after in ahead if rung >= now))

    def problem_of(self, experiment: Mapping[str, Any]) -> str:
        """Return the problem of an experiment (plain JSON), which all candidates of a race must share."""
        return canonical_json(problem_of(self._untuned(experiment)))

    def race_of(self, experiment: Mapping[str, Any]) -> str:
        """Return the race of an experiment (plain JSON): what all of its candidates share."""
        shared = self._untuned(experiment)
        return canonical_json({name: value for name, value in shared.items() if name not in {"seed", *REQUEST_FIELDS}})

    def _untuned(self, experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Return an experiment (plain JSON) without the tuned fields."""
        shared = dict(experiment)
        for axis in self.axes:
            field, _, setting = axis.partition(".")
            if not setting:
                shared.pop(field, None)
            elif isinstance(component := shared.get(field), Mapping):
                shared[field] = {name: value for name, value in component.items() if name != setting}
        return shared

    def races(self, runs: Iterable[tuple[K, str, Mapping[str, Any]]]) -> list[Race[K]]:
        """Return the runs (name, cell id, plain JSON) as races, in order."""
        ladders = {rungs[-1]: rungs for rungs in self.rungs}
        races: dict[str, Race[K]] = {}
        keys: dict[str, tuple[str, int]] = {}
        for name, cell_id, experiment in runs:
            if cell_id not in keys:
                column = self.refine.column_of(self._untuned(experiment)) if self.refine else ""
                key = self.race_of(experiment)
                race = races.setdefault(key, Race(ladders[experiment["rounds"]], [], column))
                keys[cell_id] = key, len(race.candidates)
                race.candidates.append([])
                if self.refine:
                    race.values.append(self.refine.value_of(experiment))
            key, place = keys[cell_id]
            races[key].candidates[place].append(name)
        return list(races.values())

    def value(self, record: Record | None) -> float | None:
        """Return what ranks a run, larger is better; None without a finite value."""
        value = value_of(record, self.metric)
        if value is None or not math.isfinite(value):
            return None
        return -value if METRICS[self.metric].lower_is_better else value

    def value_at(self, rung: int, final: Record, records: Callable[[], Iterable[Record]]) -> float | None:
        """Return what ranks a run at a rung, larger is better; None without a finite value.

        Args:
            rung: the rung.
            final: the last record of the run.
            records: returns all of them, in order; not called where the last one is enough.
        """
        if self.tail == 1 and final.get("round") == rung:
            return self.value(final)
        reached = [record for record in records() if 0 < record["round"] <= rung]
        if not reached or reached[-1]["round"] != rung:
            return None
        counting = reached[-self.tail :] if len(reached) >= self.tail else reached[-1:]
        values = [value for record in counting if (value := self.value(record)) is not None]
        return math.fsum(values) / len(values) if len(values) == len(counting) else None

    def standings(self, race: Race[K], ended: Callable[[K, int], Ended | None]) -> list[Standing]:
        """Return how far each candidate of a race is trained, as far as the results decide.

        A rung is decided when all runs that reach it have ended there. Candidates that lost fewer seeds, diverged
        or failed, are better, and of these the ones with the better mean. Those that equal the last one that is kept
        are kept, too.

        Args:
            race: the race.
            ended: returns how a run ended up to a rung; None while it has not.
        """
        sizes = self.sizes(race)
        standings = race.start
        for index, rung in enumerate(race.rungs[:-1]):
            left = [place for place, standing in enumerate(standings) if not standing.dropped]
            scores = []
            for place in left:
                ends = [ended(run, rung) for run in race.candidates[place]]
                if None in ends:
                    return standings
                scores.append(_score([end.value for end in ends if end]))
            last_kept = sorted(scores, reverse=True)[: sizes[index + 1]][-1]
            for place, score in zip(left, scores, strict=True):
                kept = score >= last_kept
                standings[place] = Standing(race.rungs[index + 1]) if kept else Standing(rung, dropped=True)
        return standings

    def having(self, experiment: Mapping[str, Any], value: float) -> Experiment | None:
        """Return an experiment (plain JSON) with another value of the refined field; None where it cannot have it."""
        return None if self.refine is None else self.refine.having(experiment, value)

    def most_to_come(self, races: Sequence[Race[K]]) -> int:
        """Return how many runs the refinement adds at most, before any result."""
        standings = [race.start for race in races]
        columns = self.columns(races, standings, lambda run, rung: None, lambda run, value: None)
        # exact: whole numbers
        return sum(column.to_come for column in columns)

    def columns(
        self,
        races: Sequence[Race[K]],
        standings: Sequence[Sequence[Standing]],
        ended: Callable[[K, int], Ended | None],
        make: Callable[[K, float], K | None],
    ) -> list[Column[K]]:
        """Return what the refinement adds to some races, column by column, as far as the results decide.

        Args:
            races: the races.
            standings: those of their candidates.
            ended: returns how a run ended up to a rung, as for ``standings``.
            make: returns a run with another value of the tuned field; None where no experiment can have it.
        """
        if self.refine is None:
            return []
        of_column: dict[str, list[int]] = {}
        for number, race in enumerate(races):
            of_column.setdefault(race.column, []).append(number)

        def column(numbers: Sequence[int], refine: Refinement) -> Column[K]:
            own = [races[number] for number in numbers]
            stand = [dict(zip(races[number].values, standings[number], strict=True)) for number in numbers]

            def score(row: int, value: float, seeds: Sequence[K]) -> Score | None:
                rung = own[row].rungs[-1]
                standing = stand[row].get(value, Standing(rung))
                if standing.dropped:
                    return -math.inf, 0.0
                ends = [ended(run, rung) for run in seeds] if standing.rung == rung else [None]
                return None if None in ends else _score([end.value for end in ends if end])

            grids = [dict(zip(race.values, race.candidates, strict=True)) for race in own]
            return refine.refine(grids, score, make)

        return [column(numbers, self.refine) for numbers in of_column.values()]


@dataclass(frozen=True)
class Race(Generic[K]):
    """Candidates that are compared at the same rungs.

    Attributes:
        rungs: numbers of rounds, increasing; the last is that of all of its runs.
        candidates: the seeds of each.
        column: the column whose rows are refined together; empty without refinement.
        values: those of the refined field, one for each candidate; none without refinement.
    """

    rungs: tuple[int, ...]
    candidates: list[list[K]]
    column: str = ""
    values: list[float] = field(default_factory=list)

    @property
    def start(self) -> list[Standing]:
        """Return the standings before any result."""
        return [Standing(self.rungs[0])] * len(self.candidates)


@dataclass(frozen=True)
class Ended:
    """How a run ended up to a rung: its value there; None where it diverged or failed."""

    value: float | None


@dataclass(frozen=True)
class Standing:
    """The rung to which a candidate is trained; ``dropped``: it ends there."""

    rung: int
    dropped: bool = False


def _score(values: Sequence[float | None]) -> Score:
    known = [value for value in values if value is not None]
    return len(known) - len(values), round(math.fsum(known) / len(known), DIGITS) if known else 0.0
