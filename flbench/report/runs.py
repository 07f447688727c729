"""The runs of a report: where they come from, and one ``Run`` for each request, with the record that counts.

The record is that of the last requested round, also where the run was extended later. Result files hold the last
record, so ``metrics.jsonl`` is read only for extended runs and for curves.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, get_args

from flbench.choices import OVER_TAIL, TAIL, SelectBy
from flbench.config import Experiment, Training, canonical_json, plugins_of
from flbench.errors import UserError
from flbench.halving import Ended, Halving
from flbench.messages import counted
from flbench.metric_specs import METRICS, Record, value_of
from flbench.plugin_files import code_notes
from flbench.run_sources import Reason, Source, named_by, notes_of, readable
from flbench.store import Result, RunRequest, changed_plugins

#: Fields that do not distinguish cells at one round: what was observed, what is averaged over, and the length of a run.
NOT_COMPARED = frozenset({"seed", "eval_every", "probes", "finetune", "rounds"})

#: What is said of runs that were computed several times.
OTHER_NUMERICS = (
    "results of {} that were also computed with other numerics (device, executor, precision or torch); the shortest "
    "result with the requested round counts, of equally long ones the earliest"
)


@dataclass(frozen=True)
class Run:
    """One run for one request: ``rounds`` is the round whose record counts."""

    experiment: Experiment
    rounds: int
    state: str  # done, diverged, dropped, running, submitted, failed, lost, pending, damaged
    failure: str | None = None
    result: Result | None = None
    record: Record | None = None
    last: Record | None = None  # that of the last evaluation, where the record is a mean
    since: int | None = None  # the round of the first evaluation of that mean
    varied: frozenset[str] = frozenset()  # methods of which the report has several variants
    dropped: int | None = None  # the rung at which a search ended it; its result is of that rung
    refined: bool = False  # whether a search's refinement has added it to the grid

    @property
    def run_id(self) -> str:
        """The experiment's run id."""
        return self.experiment.run_id

    @property
    def training(self) -> Training:
        """The experiment of a run that trains on a data set."""
        assert isinstance(self.experiment, Training)
        return self.experiment

    @property
    def at_last(self) -> Run:
        """The run with the record of its last evaluation in place of a mean."""
        return self if self.last is None else replace(self, record=self.last, last=None, since=None)

    @property
    def cell(self) -> tuple[str, int]:
        """The cell id and the round, which all seeds of a cell share."""
        return self.experiment.cell_id, self.rounds

    @property
    def has_curve(self) -> bool:
        """Whether evaluations cover the run: an export with ``--ends`` has round 0 and the last few alone."""
        if self.result is None:
            return False
        rounds = sorted({0, *self.result.evaluated})
        gaps = [later - earlier for earlier, later in itertools.pairwise(rounds)]
        is_tail = len(gaps) == TAIL and gaps[0] > max(gaps[1:])
        return not is_tail and (0 not in self.result.evaluated or len(gaps) > 1)

    @cached_property
    def changed_plugins(self) -> tuple[str, ...]:
        """The plug-ins whose source code has changed since its result was computed."""
        if self.result is None or "plugins" not in self.result.environment:
            return ()  # nearly always: an experiment's JSON takes long to make for 100,000 runs
        raw = self.experiment.to_json()
        measured = [probe for probe in raw.get("probes", ()) if canonical_json(probe) in self.result.probes]
        return tuple(changed_plugins(self.result.environment, plugins_of({**raw, "probes": measured})))

    @property
    def fingerprint(self) -> str | None:
        """Content hash of the data of a finished run."""
        return self.result.fingerprint if self.result else None


@dataclass(frozen=True)
class Collection:
    """The runs of a report in a fixed order; ``left_out`` says which runs are not among them, and why."""

    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    source: Source | None = None  # where the records of other rounds are

    def records(self, run: Run) -> list[dict[str, Any]]:
        """Return the records of a run up to its round; empty where it has no result."""
        if self.source is None or run.result is None:
            return []
        return [record for record in self.source.metrics(run.run_id, run.result) if record["round"] <= run.rounds]


def varied_methods(runs: Iterable[Run]) -> frozenset[str]:
    """Return the names of the methods of which runs have several variants."""
    variants: dict[str, set[str]] = {}
    for run in runs:
        method: Any = getattr(run.experiment, "method", None)
        if hasattr(method, "variant"):
            variants.setdefault(method.name, set()).add(method.variant)
    return frozenset(name for name, found in variants.items() if len(found) > 1)


def collect(
    source: Source,
    requests: Iterable[Experiment] | None = None,
    *,
    select_by: SelectBy = "last",
    metric: str = "acc",
    search: Halving | None = None,
) -> Collection:
    """Return the requested runs, whether they exist or not; without ``requests`` every run of the source.

    Args:
        source: a store, or exported files.
        requests: experiments, each up to its last round. One that does not name the content of its data stands for the
            content that the source has (``named_by``). Without requests, the runs of a cell are compared at
            the last round that all finished ones recorded.
        select_by: which record up to that round counts. ``last``: the last one; ``val``: the one with the best accuracy
            on held-out training data, where there is such data; ``oracle``: the one with the best ``metric`` on the
            test data, an upper bound. Of equal records the first. ``tail`` and ``val-tail``: the mean of the last
            ``TAIL``, or the last one where fewer were recorded after round 0.
        metric: ranks the records for ``oracle``.
        search: how the requests were searched: what it drops has no record, even where the source has one, and what it
            adds is requested, too.

    Raises:
        UserError: ``select_by`` is no such rule.
    """
    if select_by not in get_args(SelectBy):
        raise UserError(f"unknown rule {select_by!r}; known: {', '.join(get_args(SelectBy))}")
    if requests is None:
        reasons: Counter[Reason] = Counter()
        requested = _common_rounds(source, readable(source.stored_runs(), reasons))
        left_out = notes_of(reasons)
    else:
        requested, left_out = [(one, one.rounds) for one in named_by(source, tuple(requests))], ()
    unique = {(experiment.run_id, rounds): experiment for experiment, rounds in requested}
    dropped: dict[str, int] = {}
    refined: dict[tuple[str, int], Experiment] = {}
    if search is not None:
        dropped, added = _searched(source, list(unique.values()), search)
        refined = {(experiment.run_id, experiment.rounds): experiment for experiment in added}
        unique |= refined
    ranked_by = {"val": "val_acc", "oracle": metric}.get(select_by)
    runs = [
        _run_of(source, experiment, rounds, ranked_by, dropped.get(run_id))
        for (run_id, rounds), experiment in unique.items()
    ]
    runs = [replace(run, refined=True) if (run.run_id, run.rounds) in refined else run for run in runs]
    if select_by in OVER_TAIL:
        runs = [_over_tail(run, source) for run in runs]
    if recomputed := sum(_has_other_numerics(run, source) for run in runs):
        left_out += (OTHER_NUMERICS.format(counted(recomputed, "run")),)
    return Collection(tuple(sorted(runs, key=lambda run: (run.cell, run.experiment.seed))), left_out, source)


def _searched(
    source: Source, experiments: Sequence[Experiment], search: Halving
) -> tuple[dict[str, int], list[Experiment]]:
    """Return the rung at which a search dropped each run that it dropped, by run id, and the runs that it added."""
    known = {experiment.run_id: experiment for experiment in experiments}

    @cache
    def ended(run_id: str, rung: int) -> Ended | None:
        run = _run_of(source, known[run_id], rung, None)
        if run.record is not None and (result := run.result) is not None:
            return Ended(search.value_at(rung, run.record, lambda: source.metrics(run_id, result)))
        return Ended(None) if run.state in ("diverged", "failed", "lost") else None

    @cache
    def make(run_id: str, value: float) -> str | None:
        made = search.having(known[run_id].to_json(), value)
        return None if made is None else known.setdefault(made.run_id, made).run_id

    dropped: dict[str, int] = {}
    races = search.races((one.run_id, one.cell_id, one.to_json()) for one in experiments)
    standings = [search.standings(race, ended) for race in races]
    for race, stand in zip(races, standings, strict=True):
        for seeds, standing in zip(race.candidates, stand, strict=True):
            dropped.update((run_id, standing.rung) for run_id in seeds if standing.dropped)
    columns = search.columns(races, standings, ended, make)
    return dropped, [known[run_id] for column in columns for run_id in column.added]


def _run_of(
    source: Source, experiment: Experiment, rounds: int, ranked_by: str | None, dropped: int | None = None
) -> Run:
    if dropped is not None:
        at_rung = _run_of(source, experiment, dropped, None)
        is_result = at_rung.state == "done"
        return replace(
            at_rung, rounds=rounds, record=None, dropped=dropped, state="dropped" if is_result else at_rung.state
        )
    result = covering(source.results(experiment.run_id), rounds, experiment)
    if result is None:
        state, failure = source.state(experiment)
        return Run(experiment, rounds, state, failure)
    if not _has_record(result, rounds):
        return Run(experiment, rounds, "diverged", result=result)
    record = _record_that_counts(source, experiment, result, rounds, ranked_by)
    if record is None:
        return Run(experiment, rounds, "damaged")
    return Run(experiment, rounds, "done", result=result, record=record)


def _over_tail(run: Run, source: Source) -> Run:
    """Return a run with the mean of its last ``TAIL`` evaluations; as it is where fewer were recorded."""
    if run.result is None or run.record is None:
        return run
    records = source.metrics(run.run_id, run.result)
    evaluated = [record for record in records if 0 < record["round"] <= run.rounds][-TAIL:]
    if len(evaluated) < TAIL:
        return run
    averaged = (name for name, metric in METRICS.items() if metric.is_averaged and name in run.record)
    values = {name: [value_of(record, name) for record in evaluated] for name in averaged}
    means = {name: math.fsum(known) / TAIL for name, of in values.items() if (known := _complete(of))}
    return replace(run, record={**run.record, **means}, last=run.record, since=evaluated[0]["round"])


def _complete(values: Sequence[float | None]) -> list[float]:
    """Return the values; none if one is missing or not finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known if len(known) == len(values) else []


def covering(results: Sequence[Result], rounds: int, experiment: Experiment) -> Result | None:
    """Return the result with a record of ``rounds``, or else one that diverged before; None where there is neither.

    Results on the data and with the plug-ins of the experiment come first, others are shown as what they are. Then come
    those with its probes. ``eval_every`` does not matter, because evaluating more often does not change the record.
    """
    recorded = [result for result in results if _has_record(result, rounds)]
    diverged = [result for result in results if result.status == "diverged" and result.rounds <= rounds]
    candidates = recorded or diverged
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    request = RunRequest.of(experiment)
    # Sorted by content, so that a store and a file exported from it give the same result.
    return min(candidates, key=lambda r: (*r.lacks(request), r.rounds, len(r.evaluated), r.published))


def _has_other_numerics(run: Run, source: Source) -> bool:
    """Whether a source has another result of the run for this request, computed with other numerics."""
    chosen = run.result
    return chosen is not None and any(
        _has_record(result, run.rounds) and result.numerics != chosen.numerics for result in source.results(run.run_id)
    )


def _has_record(result: Result, rounds: int) -> bool:
    """Whether the round was evaluated before the run diverged."""
    return rounds in result.evaluated and (result.status == "done" or rounds < result.rounds)


def _record_that_counts(
    source: Source, experiment: Experiment, result: Result, rounds: int, ranked_by: str | None
) -> Record | None:
    """Return the record with the best value of a metric, else that of the last round; None where it is missing."""
    if ranked_by is None and result.final.get("round") == rounds:
        return result.final
    records = [record for record in source.metrics(experiment.run_id, result) if record["round"] <= rounds]
    if ranked_by is not None:
        sign = -1 if ranked_by in METRICS and METRICS[ranked_by].lower_is_better else 1
        values = [(value_of(record, ranked_by), record) for record in records]
        scored = [(sign * value, record) for value, record in values if value is not None and math.isfinite(value)]
        if scored:
            return max(scored, key=lambda pair: pair[0])[1]
    return next((record for record in records if record["round"] == rounds), None)


def code_notes_of(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return a sentence for each plug-in that changed after some of these runs had finished."""
    return code_notes(Counter(plugin for run in runs for plugin in run.changed_plugins))


def _common_rounds(source: Source, experiments: Sequence[Experiment]) -> list[tuple[Experiment, int]]:
    """Return each experiment with the last round that all finished runs of its cell recorded."""
    cells: dict[str, list[tuple[Experiment, set[int]]]] = {}
    for experiment in experiments:
        done = (result for result in source.results(experiment.run_id) if result.status == "done")
        recorded = {rounds for result in done for rounds in result.evaluated}
        cells.setdefault(experiment.cell_id, []).append((experiment, recorded))
    out = []
    for members in cells.values():
        finished = [recorded for _, recorded in members if recorded]
        common = set.intersection(*finished) if finished else set()
        out += [(experiment, max(common or recorded or {experiment.rounds})) for experiment, recorded in members]
    return out


def compared_fields(experiment: Experiment) -> dict[str, Any]:
    """Return the fields that a leaderboard may compare, components as components."""
    return {name: getattr(experiment, name) for name in type(experiment).model_fields if name not in NOT_COMPARED}
