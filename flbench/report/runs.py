"""From a store or exported files to runs.

One ``Run`` is one experiment that was requested, with its state and, where it is finished, the metrics after the last
round requested: a run that was later extended still answers with that round's record. Result files carry the final
record, so ``metrics.jsonl`` is read only for extended runs and for curves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, get_args

from flbench.choices import SelectBy
from flbench.config import Experiment, Training
from flbench.errors import UserError
from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.contents import named_by
from flbench.store import Result, RunRequest, Store

if TYPE_CHECKING:
    pass

#: Fields of an experiment that no leaderboard compares: what was observed, and what is averaged over.
NOT_COMPARED = frozenset({"seed", "eval_every", "probes"})

#: Rules by which a run's record is chosen.
RULES = get_args(SelectBy)


@dataclass(frozen=True)
class Held:
    """A run that a source has, under the id it was stored with."""

    run_id: str
    experiment: Experiment | None  # None: this version of flbench cannot read it


class Source(Protocol):
    """Where runs come from: a store, or exported files."""

    def held(self) -> Iterator[Held]:
        """Every run there is."""

    def results(self, run_id: str) -> Sequence[Result]:
        """The run's published results; empty where there are none or no such run."""

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """All records behind one of its results, in the order of rounds."""

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """State of an unfinished run, and the kind of its failure if it failed."""


class StoreSource:
    """The runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: dict[str, Sequence[Result]] = {}

    def held(self) -> Iterator[Held]:
        """Every run that was ever begun."""
        for run_id in self._store.run_ids():
            try:
                yield Held(run_id, self._store.run(run_id).experiment())
            except (OSError, UserError):
                yield Held(run_id, None)

    def results(self, run_id: str) -> Sequence[Result]:
        """The run's results, read once; none where one cannot be read: ``state`` says so then."""
        if run_id not in self._results:
            try:
                self._results[run_id] = self._store.run(run_id).results()
            except OSError:
                self._results[run_id] = ()
        return self._results[run_id]

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """The records behind a result, verified; none where they cannot be read."""
        try:
            return self._store.run(run_id).metrics(result)
        except OSError:
            return []

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """State of an unfinished run; one that was finished since its results were read still counts as running."""
        state = self._store.run(experiment.run_id).state(experiment)
        if state.status == "done":
            return "running", None
        return state.status, state.kind if state.status == "failed" else None


@dataclass(frozen=True)
class Run:
    """One run for one request: ``rounds`` is the round whose record counts."""

    experiment: Experiment
    rounds: int
    state: str  # done, diverged, running, submitted, failed, lost, pending, damaged
    failure: str | None = None
    result: Result | None = None
    record: Record | None = None
    varied: frozenset[str] = frozenset()  # methods of which the report has several variants

    @property
    def run_id(self) -> str:
        """The experiment's run id."""
        return self.experiment.run_id

    @property
    def training(self) -> Training:
        """The experiment of a run that trains on a data set; leaderboards are made of those."""
        assert isinstance(self.experiment, Training)
        return self.experiment

    @property
    def cell(self) -> tuple[str, int]:
        """What all seeds of a cell share: the cell id and the round."""
        return self.experiment.cell_id, self.rounds

    @property
    def has_curve(self) -> bool:
        """Whether anything is known between its beginning and its end (not so in an export of the ends)."""
        return self.result is not None and (len(self.result.evaluated) > 2 or 0 not in self.result.evaluated)

    @property
    def fingerprint(self) -> str | None:
        """Content hash of the data it ran on, where it is finished."""
        return self.result.fingerprint if self.result else None


@dataclass(frozen=True)
class Collection:
    """The runs of a report in a fixed order, and what was left out of it and why."""

    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    source: Source | None = None  # where the records of other rounds are

    def records(self, run: Run) -> list[dict[str, Any]]:
        """The run's records up to the round requested; none where it has no result."""
        if self.source is None or run.result is None:
            return []
        return [record for record in self.source.metrics(run.run_id, run.result) if record["round"] <= run.rounds]

    def naming_variants(self, varied: frozenset[str]) -> Collection:
        """The same with labels that name the variant of the methods in ``varied``."""
        return dataclasses.replace(self, runs=tuple(dataclasses.replace(run, varied=varied) for run in self.runs))


def varied_methods(runs: Iterable[Run]) -> frozenset[str]:
    """The names of methods of which runs have several variants."""
    variants: dict[str, set[str]] = {}
    for run in runs:
        method: Any = getattr(run.experiment, "method", None)
        if hasattr(method, "variant"):
            variants.setdefault(method.name, set()).add(method.variant)
    return frozenset(name for name, found in variants.items() if len(found) > 1)


def collect(
    source: Source, requests: Iterable[Experiment] | None = None, *, select_by: str = "last", metric: str = "acc"
) -> Collection:
    """The runs requested, whether they exist or not; without ``requests`` every run of the source.

    A request that does not name the content of its data is for the content that the source has (``contents.named_by``).
    A request is for its last round. Without requests, the seeds of a cell count at the last round that all its
    finished runs have recorded. Up to that round, ``select_by="val"`` takes the record with the best accuracy on
    held-out training data where there is such data, and ``select_by="oracle"`` the one with the best ``metric`` on the
    test data, which is no result but an upper bound; of equals the first.
    """
    if requests is None:
        experiments, left_out = _readable(source)
        wanted = _common_rounds(source, experiments)
    else:
        named = named_by(source, tuple(requests))
        wanted, left_out = [(experiment, experiment.rounds) for experiment in named], ()
    unique = {(experiment.run_id, rounds): experiment for experiment, rounds in wanted}
    judge = _judge(select_by, metric)
    runs = (_look_up(source, experiment, rounds, judge) for (_, rounds), experiment in unique.items())
    return Collection(tuple(sorted(runs, key=lambda run: (run.cell, run.experiment.seed))), left_out, source)


def covering(results: Sequence[Result], rounds: int, experiment: Experiment) -> Result | None:
    """The result that answers for ``rounds``: one that recorded that round, or else one that diverged before it.

    Results on the data and with the plug-ins of the experiment come before others, which are shown as what they are.
    Its intermediate evaluations do not matter here: looking more often does not change the number.
    """
    recorded = [result for result in results if _has_record(result, rounds)]
    diverged = [result for result in results if result.status == "diverged" and result.rounds <= rounds]
    # By content, so that a store and a file made from it answer with the same result.
    candidates = recorded or diverged
    if len(candidates) > 1:
        request = RunRequest.of(experiment)
        return min(candidates, key=lambda r: (not r.is_of(request), r.rounds, len(r.evaluated), r.published))
    return candidates[0] if candidates else None


def _has_record(result: Result, rounds: int) -> bool:
    """Whether the round was evaluated, and before anything diverged."""
    return rounds in result.evaluated and (result.status == "done" or rounds < result.rounds)


#: How good a record is to choose it, or None where that is unknown.
Judge = Callable[[Record], float | None]


def _judge(select_by: str, metric: str) -> Judge | None:
    """By what records are chosen; None: the last one counts. Raises UserError for an unknown rule."""
    if select_by not in RULES:
        raise UserError(f"unknown rule {select_by!r}; known: {', '.join(RULES)}")
    if select_by == "last":
        return None
    name = "val_acc" if select_by == "val" else metric
    sign = -1 if name in METRICS and METRICS[name].lower_is_better else 1

    def goodness(record: Record) -> float | None:
        value = value_of(record, name)
        return None if value is None or not math.isfinite(value) else sign * value

    return goodness


def _look_up(source: Source, experiment: Experiment, rounds: int, judge: Judge | None) -> Run:
    result = covering(source.results(experiment.run_id), rounds, experiment)
    if result is None:
        state, failure = source.state(experiment)
        return Run(experiment, rounds, state, failure)
    if not _has_record(result, rounds):
        return Run(experiment, rounds, "diverged", result=result)
    record = _select(source, experiment, result, rounds, judge)
    if record is None:
        return Run(experiment, rounds, "damaged")
    return Run(experiment, rounds, "done", result=result, record=record)


def _select(source: Source, experiment: Experiment, result: Result, rounds: int, judge: Judge | None) -> Record | None:
    """The record that counts; None where the metrics behind the result are gone."""
    if judge is None and result.final.get("round") == rounds:
        return result.final
    records = [record for record in source.metrics(experiment.run_id, result) if record["round"] <= rounds]
    judged = [(goodness, record) for record in records if judge and (goodness := judge(record)) is not None]
    if judged:
        return max(judged, key=lambda pair: pair[0])[1]
    return next((record for record in records if record["round"] == rounds), None)


def _readable(source: Source) -> tuple[list[Experiment], tuple[str, ...]]:
    """Every experiment whose id is still the id of its numbers, and a line about the others."""
    kept, retired, unreadable = [], 0, 0
    for held in source.held():
        if held.experiment is None:
            unreadable += 1
        elif held.experiment.run_id != held.run_id:
            retired += 1
        else:
            kept.append(held.experiment)
    notes = (
        (retired, "of an earlier version of a component, whose numbers are retired"),
        (unreadable, "whose experiment this version of flbench cannot read"),
    )
    return kept, tuple(f"{count} {'run' if count == 1 else 'runs'} {why}" for count, why in notes if count)


def _common_rounds(source: Source, experiments: Sequence[Experiment]) -> list[tuple[Experiment, int]]:
    """Each experiment with the last round that all finished runs of its cell recorded."""
    cells: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        cells.setdefault(experiment.cell_id, []).append(experiment)
    out = []
    for members in cells.values():
        recorded = [rounds for member in members if (rounds := _recorded(source.results(member.run_id)))]
        common = set.intersection(*recorded) if recorded else set()
        for member in members:
            own = _recorded(source.results(member.run_id)) or {member.rounds}
            out.append((member, max(common or own)))
    return out


def _recorded(results: Sequence[Result]) -> set[int]:
    return {rounds for result in results if result.status == "done" for rounds in result.evaluated}


def compared_fields(experiment: Experiment) -> dict[str, Any]:
    """The fields that a leaderboard may compare, components as components."""
    return {
        name: getattr(experiment, name)
        for name in type(experiment).model_fields
        if name not in NOT_COMPARED and name != "rounds"
    }


def public_environment(result: Result) -> dict[str, Any]:
    """What a run was computed with, without the name of the machine."""
    return {name: value for name, value in result.environment.items() if name != "host"}
