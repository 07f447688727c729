"""Where the runs of a report come from: a store, or exported files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flbench.config import Experiment
from flbench.errors import UserError
from flbench.report.exports import Exported, read
from flbench.report.transfer import contradiction
from flbench.store import Result, Store


@dataclass(frozen=True)
class StoredRun:
    """A run of a source, under the id that it was stored with."""

    run_id: str
    experiment: Experiment | None  # None: this version of flbench cannot read it


class Source(Protocol):
    """Where runs come from: a store, or exported files."""

    def stored_runs(self) -> Iterator[StoredRun]:
        """Yield every run."""

    def results(self, run_id: str) -> Sequence[Result]:
        """Return the published results of a run; empty for an unknown run."""

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """Return all records of one result, in the order of rounds."""

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """Return the state of an unfinished run, and the kind of failure of a failed one."""


class StoreSource:
    """The runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: dict[str, Sequence[Result]] = {}

    def stored_runs(self) -> Iterator[StoredRun]:
        """Yield every run that was ever started."""
        for run_id in self._store.run_ids():
            try:
                yield StoredRun(run_id, self._store.run(run_id).experiment())
            except (OSError, UserError):
                yield StoredRun(run_id, None)

    def results(self, run_id: str) -> Sequence[Result]:
        """Return the results of a run, read once; empty where one is unreadable, which ``state`` reports."""
        if run_id not in self._results:
            try:
                self._results[run_id] = self._store.run(run_id).results()
            except OSError:
                self._results[run_id] = ()
        return self._results[run_id]

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """Return the verified records of a result; empty where they are unreadable."""
        try:
            return self._store.run(run_id).metrics(result)
        except OSError:
            return []

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """Return the state of an unfinished run; one that finished after its results were read is still ``running``."""
        state = self._store.run(experiment.run_id).state(experiment)
        if state.status == "done":
            return "running", None
        return state.status, state.kind if state.status == "failed" else None


class FilesSource:
    """The runs of exported files, as a report's source."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._runs: dict[str, list[Exported]] = {}
        for path in paths:
            for one in read(path):
                self._add(one, path)

    def stored_runs(self) -> Iterator[StoredRun]:
        """Yield every run in the files."""
        for run_id in sorted(self._runs):
            yield StoredRun(run_id, self._runs[run_id][0].experiment)

    def results(self, run_id: str) -> Sequence[Result]:
        """Return the results of a run, fewest rounds first."""
        return [one.result for one in self._runs.get(run_id, ())]

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """Return the records of a result."""
        return next(one.records for one in self._runs[run_id] if one.result is result)

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """Return ``pending``: a file holds finished runs only."""
        return "pending", None

    def _add(self, new: Exported, path: Path) -> None:
        known = self._runs.setdefault(new.run_id, [])
        for old in known:
            if problem := contradiction(old.result, old.records, new):
                raise UserError(
                    f"{path}: run {new.run_id} has other numbers here than in an earlier file ({problem}); "
                    "report the files separately"
                )
        if new.result not in [old.result for old in known]:
            known.append(new)
