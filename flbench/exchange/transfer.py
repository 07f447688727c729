"""Runs between stores and exported files: export from a store, import into one, exported files as a report's source."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flbench.choices import TAIL
from flbench.config import Experiment, canonical_json, plugins_of
from flbench.errors import UserError
from flbench.exchange.exports import Exported, read
from flbench.run_sources import RETIRED, StoredRun
from flbench.store import Lease, Result, RunDir, Store, changed_plugins, files, strict_json
from flbench.store.results import without_private

ImportOutcome = Literal[
    "imported", "already there", "superseded", "different numbers", "in use", "retired", "unreadable"
]


def export_runs(store: Store, run_ids: Iterable[str], *, ends: bool = False) -> tuple[list[Exported], tuple[str, ...]]:
    """Return every valid result of some runs by run id and rounds, and a message about each invalid one.

    With ``ends``, only the first evaluation of each run and its last ``TAIL`` are kept.
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
        raise ValueError(RETIRED)
    attempt = next((attempt for attempt in run.attempts() if attempt.number == result.attempt), None)
    exported = Exported(
        run_id=run.run_id,
        experiment_json=canonical_json(experiment.to_json()),
        result=dataclasses.replace(result, environment=without_private(result.environment)),
        metrics=strict_json.join_lines(run.metrics(result)),
        environment=without_private(attempt.environment() if attempt else {}),
    )
    exported.check(exported.records)
    return exported.on_its_data()


def _ends_of(whole: Exported) -> Exported:
    """Return the result with the evaluations that tables read: before the first round, and the last ``TAIL``."""
    ends = {0, *(record["round"] for record in whole.records[-TAIL:])}
    records = [record for record in whole.records if record["round"] in ends]
    metrics = strict_json.join_lines(records)
    result = dataclasses.replace(
        whole.result,
        evaluated=frozenset(record["round"] for record in records),
        metrics_sha256=hashlib.sha256(metrics).hexdigest(),
        metrics_bytes=len(metrics),
    )
    return dataclasses.replace(whole, metrics=metrics, result=result)


def current(exported: Iterable[Exported]) -> tuple[list[Exported], list[Exported]]:
    """Return the results that count, and those that are superseded, both in their order.

    A result is superseded if it was computed with other source code of a plug-in than the present one, and a result
    with the present code answers the same request. If no result has the present code, all count.
    """
    by_run: dict[str, list[Exported]] = {}
    for one in exported:
        by_run.setdefault(one.run_id, []).append(one)
    kept: list[Exported] = []
    superseded: list[Exported] = []
    for results in by_run.values():
        new = [one.result for one in results if not _has_other_code(one)]
        for one in results:
            request = dataclasses.replace(one.request(), plugins="")
            is_old = len(new) < len(results) and _has_other_code(one)
            (superseded if is_old and any(result.covers(request) for result in new) else kept).append(one)
    return kept, superseded


def _has_other_code(one: Exported) -> bool:
    """Return whether a result was computed with other source code of a plug-in than the present one."""
    if "plugins" not in one.result.environment or one.experiment is None:
        return False
    return bool(changed_plugins(one.result.environment, plugins_of(one.experiment.to_json())))


def contradiction(result: Result, records: Sequence[Mapping[str, Any]], new: Exported) -> str | None:
    """Return how two results of one run contradict each other; None where they do not, as on different data."""
    if not result.is_of(new.request()):
        return None
    first, second = sorted((result, new.result), key=lambda one: one.rounds)
    if first.status == "diverged" and (second.status == "done" or second.rounds > first.rounds):
        return f"one diverged in round {first.rounds}, the other did not"
    known = {record["round"]: record for record in records}
    return next((f"first in round {r['round']}" for r in new.records if _differ(known.get(r["round"], r), r)), None)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two records have other numbers; times and probes may differ, and how a sum was rounded."""
    names = (one.keys() | other.keys()) - {"seconds", "probes"}
    return not all(_is_close(one.get(name), other.get(name)) for name in names)


def _is_close(one: Any, other: Any) -> bool:
    """Return whether two values are equal, but for the last bits: earlier versions added losses in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def import_runs(store: Store, exported: Iterable[Exported], lease: Lease) -> list[tuple[Exported, ImportOutcome]]:
    """Add the results that a store lacks, but no superseded ones (``current``); no result in the store changes.

    Returns:
        A verdict on each, those on superseded ones last.
    """
    kept, superseded = current(exported)
    return [*((one, _import_run(store, one, lease)) for one in kept), *((one, "superseded") for one in superseded)]


def _import_run(store: Store, new: Exported, lease: Lease) -> ImportOutcome:
    request = new.wanted()
    if new.experiment is None or request is None:
        return "unreadable"
    if new.experiment.run_id != new.run_id:
        return "retired"
    run = store.run(new.run_id)
    if any(contradiction(result, run.metrics(result), new) for result in run.results()):
        return "different numbers"
    if run.result_for(new.request()) is not None:
        return "already there"
    # The claim keeps workers away from this run while its files are written.
    attempt = store.claim(request, lease)
    if attempt is None:
        if run.state(request).status != "done":
            return "in use"
        return "superseded" if _has_other_code(new) else "already there"
    files.replace(attempt.metrics_path, new.metrics)
    attempt.describe(new.environment)
    path = run.path / "results" / f"{new.result.rounds:08d}.json"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path = path.with_name(f"{path.stem}-{attempt.number:04d}.json")
    result = dataclasses.replace(new.result, file=str(path), attempt=attempt.number)
    files.publish(path, strict_json.pretty(result.to_json()))
    attempt.end("ok", "imported")
    return "imported"


class FilesSource:
    """The runs of exported files, as a report's source.

    Several files may have a run: with equal numbers, or computed with other numerics. Two results with the same
    numerics and other numbers are an error, but only for a run that is asked for.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._runs: dict[str, list[tuple[Path, Exported]]] = {}
        for path in paths:
            for new in read(path):
                known = self._runs.setdefault(new.run_id, [])
                if new.result not in [old.result for _, old in known]:
                    known.append((path, new))
        self._checked: set[str] = set()

    def stored_runs(self) -> Iterator[StoredRun]:
        """Yield every run in the files."""
        for run_id in sorted(self._runs):
            yield self._runs[run_id][0][1].stored

    def results(self, run_id: str) -> Sequence[Result]:
        """Return the results of a run; raises UserError where two with the same numerics have other numbers."""
        found = self._runs.get(run_id, ())
        if run_id not in self._checked:
            for (path, old), (other, new) in itertools.combinations(found, 2):
                same = old.result.numerics == new.result.numerics
                if same and (problem := contradiction(old.result, old.records, new)):
                    raise UserError(
                        f"{other}: run {run_id} has other numbers here than in {path} ({problem}), though both were "
                        "computed with the same numerics: report the files separately"
                    )
            self._checked.add(run_id)
        return [one.result for _, one in found]

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """Return the records of a result."""
        return next(one.records for _, one in self._runs[run_id] if one.result is result)

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """Return ``pending``: a file holds finished runs only."""
        return "pending", None
