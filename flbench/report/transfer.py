"""Runs between stores and exported files: what an export takes from a store, what an import adds to one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from flbench.config import canonical_json
from flbench.errors import UserError
from flbench.report.exports import Exported, sha256
from flbench.store import Lease, Result, RunDir, Store, files, strict_json

#: Fields of an environment that concern the machine's user rather than the numbers; they are not exported.
PRIVATE = frozenset({"host", "argv", "cuda_visible_devices"})

ImportOutcome = Literal["imported", "already there", "different numbers", "in use", "retired", "unreadable"]


def export_runs(store: Store, run_ids: Iterable[str], *, ends: bool = False) -> tuple[list[Exported], tuple[str, ...]]:
    """Return every valid result of some runs by run id and rounds, and a message about each invalid one.

    Args:
        store: where the runs are.
        run_ids: the runs.
        ends: whether to keep only the first and the last evaluation of each run.
    """
    taken, problems = [], []
    for run_id in sorted(set(run_ids)):
        run = store.run(run_id)
        try:
            results = run.results()
        except OSError as error:
            problems.append(f"run {run_id}: {files.reason(error)}")
            continue
        for result in results:
            try:
                one = _export_run(run, result)
                taken.append(_ends_of(one) if ends else one)
            except (OSError, UserError, ValueError) as error:
                problems.append(f"run {run_id}, {result.rounds} rounds: {error}")
    return taken, tuple(problems)


def _export_run(run: RunDir, result: Result) -> Exported:
    experiment = run.experiment()
    if experiment.run_id != run.run_id:
        raise ValueError("of an earlier version of a component, whose numbers are retired")
    attempt = next((attempt for attempt in run.attempts() if attempt.number == result.attempt), None)
    exported = Exported(
        run_id=run.run_id,
        experiment_json=canonical_json(experiment.to_json()),
        result=dataclasses.replace(result, environment=_without_private(result.environment)),
        metrics=strict_json.join_lines(run.metrics(result)),
        environment=_without_private(attempt.environment() if attempt else {}),
    )
    exported.check()
    return exported.on_its_data()


def _ends_of(whole: Exported) -> Exported:
    """Return what the run would have recorded with ``eval_every`` equal to its rounds."""
    ends = {0, *(record["round"] for record in whole.records[-1:])}
    records = [record for record in whole.records if record["round"] in ends]
    metrics = strict_json.join_lines(records)
    result = dataclasses.replace(
        whole.result,
        evaluated=frozenset(record["round"] for record in records),
        metrics_sha256=sha256(metrics),
        metrics_bytes=len(metrics),
    )
    return dataclasses.replace(whole, metrics=metrics, result=result)


def _without_private(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in PRIVATE}


def contradiction(result: Result, records: Sequence[Mapping[str, Any]], new: Exported) -> str | None:
    """Return how two results of one run contradict each other; None where they do not, as on different data."""
    if not result.is_of(new.request()):
        return None
    first, second = sorted((result, new.result), key=lambda one: one.rounds)
    diverged = first.status == "diverged" and (second.status == "done" or second.rounds > first.rounds)
    if diverged:
        return f"one diverged in round {first.rounds}, the other did not"
    if (differs := _differing_round(records, new.records)) is not None:
        return f"first in round {differs}"
    return None


def _differing_round(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the first round that both recorded with different numbers; times and probes do not count."""
    known = {record["round"]: _numbers(record) for record in ours}
    return next((r["round"] for r in theirs if known.get(r["round"], _numbers(r)) != _numbers(r)), None)


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("seconds", "probes")}


def import_runs(store: Store, exported: Iterable[Exported], lease: Lease) -> list[tuple[Exported, ImportOutcome]]:
    """Add the results that a store lacks; return a verdict on each. No result in the store changes."""
    return [(one, _import_run(store, one, lease)) for one in exported]


def _import_run(store: Store, new: Exported, lease: Lease) -> ImportOutcome:
    if new.experiment is None:
        return "unreadable"
    if new.experiment.run_id != new.run_id:
        return "retired"
    run = store.run(new.run_id)
    if any(contradiction(result, run.metrics(result), new) for result in run.results()):
        return "different numbers"
    if run.result_for(new.request()) is not None:
        return "already there"
    # The claim keeps workers away from this run while its files are written.
    request = new.wanted()
    assert request is not None
    attempt = store.claim(request, lease)
    if attempt is None:
        return "already there" if run.state(request).status == "done" else "in use"
    files.replace(attempt.metrics_path, new.metrics)
    attempt.describe(new.environment)
    path = run.path / "results" / f"{new.result.rounds:08d}.json"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path = path.with_name(f"{path.stem}-{attempt.number:04d}.json")
    files.publish(
        path, strict_json.pretty(dataclasses.replace(new.result, file=str(path), attempt=attempt.number).to_json())
    )
    attempt.end("ok", "imported")
    return "imported"
