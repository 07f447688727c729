"""Check every file of a store, alone and against the others; nothing is changed, not even damaged files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from flbench.config import EvaluatedRounds, InvalidExperiment, parse_experiment
from flbench.errors import StoreUnusable, UserError
from flbench.exchange.findings import Findings
from flbench.regular import read_regular
from flbench.store import files, strict_json
from flbench.store.attempts import AttemptDir, Checkpoint
from flbench.store.claims import SHORT_ENVIRONMENT
from flbench.store.leases import Lease
from flbench.store.names import is_run_id
from flbench.store.plans import Entry, parse_plan, plan_files, read_content
from flbench.store.records import check_record, parse_records
from flbench.store.results import Result
from flbench.store.root import Store


@dataclass(kw_only=True)
class Audit(Findings):
    """Check a store, or parts of it, and collect problems; ``runs`` and ``files`` count what was checked."""

    store: Store
    runs: int = 0
    files: int = 0

    def everything(self) -> None:
        """Check all sweeps, runs and workers."""
        for directory in sorted(self.store.sweeps.glob("*/*/")):
            self.plan(directory)
        for path in sorted((self.store.root / "runs").glob("*/*")):
            self.run(path)
        for path in sorted(self.store.workers.glob("*/lease.json")):
            if self._json(path) is not None and Lease.read(path) is None:
                self.report(path, "this is no lease")
        for path in sorted(self.store.workers.glob("*/exit.json")):
            self._sealed(path)

    def plan(self, directory: Path) -> list[Entry]:
        """Check a sweep's plan, and the runs that its search has added; return its entries."""
        return [entry for path in plan_files(directory) for entry in self._planned(path)]

    def _planned(self, path: Path) -> list[Entry]:
        self.files += 1
        try:
            entries = parse_plan(path, read_content(path))
        except StoreUnusable as error:
            self.report(path, str(error))
            return []
        if not entries:
            self.report(path, "it names no run")
        for entry in entries:
            self._identity(path, entry.experiment, entry.run_id, entry.cell_id)
        if len({entry.run_id for entry in entries}) < len(entries):
            self.report(path, "it names a run twice")
        return entries

    def run(self, path: Path) -> None:
        """Check all files of a run."""
        if not is_run_id(path.name) or path.parent.name != path.name[:2]:
            self.report(path, "no run has this id, or it does not belong into this folder")
            return
        self.runs += 1
        try:
            attempts = self.store.run(path.name).attempts()
            if [attempt.number for attempt in attempts] != list(range(1, len(attempts) + 1)):
                self.report(path / "attempts", f"its attempts are {', '.join(str(one.number) for one in attempts)}")
            self._experiment(path / "experiment.json", path.name, begun=bool(attempts))
            for attempt in attempts:
                ended = attempt is not attempts[-1] or (attempt.path / "exit.json").exists()
                # The files of a live attempt may change while they are read.
                if ended or not self.store.liveness.alive(attempt.lease(), attempt.path / "lease.json"):
                    self._attempt(attempt)
            for result in sorted((path / "results").glob("[!.]*.json")):
                self._result(result, attempts)
        except (StoreUnusable, OSError) as error:  # of a newer flbench, or not to be read at all
            self.report(path, str(error))

    def is_sound(self, run_id: str) -> bool:
        """Return whether the files of a run have no problem, and all of them could be checked."""
        path = self.store.run(run_id).path
        return not any(run_id in runs for runs in self.unknown.values()) and not any(
            problem.path.is_relative_to(path) for problem in self.problems
        )

    def _experiment(self, path: Path, run_id: str, *, begun: bool) -> None:
        if not path.exists():
            if begun:
                self.report(path, "it is missing")
            return
        raw = self._json(path)
        if raw is None:
            return
        experiment = {key: raw[key] for key in raw.keys() - {"schema", "run_id", "cell_id"}}
        if raw.get("run_id") != run_id:
            self.report(path, f"it belongs to run {raw.get('run_id')!r:.40}")
        self._identity(path, experiment, run_id, str(raw.get("cell_id")))

    def _identity(self, path: Path, raw: Mapping[str, Any], run_id: str, cell_id: str) -> None:
        """Check that the ids of run and cell are the hashes of the experiment, with and without its seed."""
        try:
            experiment = parse_experiment(raw)
        except (UserError, TypeError) as error:
            if isinstance(error, InvalidExperiment) and error.unknown:  # of a plug-in that is not loaded: no damage
                self.unknown[error.unknown].add(run_id)
                return
            self.report(path, f"the experiment of run {run_id} cannot be read: {error}")
            return
        if (experiment.run_id, experiment.cell_id) != (run_id, cell_id):
            self.report(
                path,
                f"the experiment of run {run_id} hashes to {experiment.run_id}: "
                "it was changed by hand, or a component has a newer version since",
            )

    def _attempt(self, attempt: AttemptDir) -> None:
        path = attempt.path
        if self._sealed(path / "lease.json") is not None and attempt.lease() is None:
            self.report(path / "lease.json", "this is no lease")
        for name in ("exit.json", "environment.json", "cancel.json"):
            if (path / name).exists():
                self._sealed(path / name)
        end = attempt.exit() or {}
        if attempt.metrics_path.exists():
            self._metrics(attempt.metrics_path, torn_is_well=end.get("kind") not in ("ok", "interrupted", "cancelled"))
        for checkpoint in attempt.checkpoint_files():
            self.files += 1
            if Checkpoint.at(checkpoint, attempt.number) is None:
                self.report(checkpoint, "its bytes are not those of the checksum in its name")

    def _metrics(self, path: Path, *, torn_is_well: bool) -> None:
        self.files += 1
        data = files.read_bytes(path)
        if data is None:
            self.report(path, "it is no file")
            return
        records = strict_json.parse_lines(data)
        whole, torn = data.count(b"\n"), not data.endswith(b"\n") and bool(data)
        if len(records) < whole or (torn and not torn_is_well):
            self.report(path, f"line {len(records) + 1} is torn")
        for number, record in enumerate(records, 1):
            try:
                check_record(record)
            except ValueError as error:
                self.report(path, f"line {number}: {error}")
                return
        if any(later["round"] <= earlier["round"] for earlier, later in pairwise(records)):
            self.report(path, "its rounds do not ascend")

    def _result(self, path: Path, attempts: Sequence[AttemptDir]) -> None:
        raw = self._json(path)
        if raw is None:
            return
        fits = "sha256" in raw and strict_json.is_as_written(raw)
        raw.pop("sha256", None)
        try:
            result = Result.parse(raw, str(path))
        except ValueError as error:
            self.report(path, f"a field is missing or damaged: {error}")
            return
        for what in self._contradictions(result, attempts) if fits else ("its checksum does not fit",):
            self.report(path, what)

    def _contradictions(self, result: Result, attempts: Sequence[AttemptDir]) -> Iterator[str]:
        """Yield contradictions between a result and its run, its name or its metrics."""
        if result.run_id != result.path.parent.parent.name:
            yield f"it belongs to run {result.run_id!r:.40}"
        if result.path.name[:8] != f"{result.rounds:08d}":
            yield f"it reached round {result.rounds}, and its name has another number"
        attempt = next((one for one in attempts if one.number == result.attempt), None)
        if attempt is None or (data := files.read_bytes(attempt.metrics_path)) is None:
            yield f"the metrics of attempt {result.attempt}, which bear it out, are missing"
            return
        if len(data) != result.metrics_bytes or hashlib.sha256(data).hexdigest() != result.metrics_sha256:
            yield f"the metrics of attempt {result.attempt} are not those that it was made of"
            return
        with suppress(OSError, UserError):  # which are reported of the experiment
            if what := result.contradicts(self.store.run(result.run_id).experiment()):
                yield what
        records = parse_records(data)
        environment = attempt.environment()
        shared = result.environment.keys() & set(SHORT_ENVIRONMENT)
        if any(environment.get(name) != result.environment[name] for name in shared):
            yield f"its environment is not that of attempt {result.attempt}"
        if {record.get("round") for record in records} != result.evaluated:
            yield "its evaluations are not those of its metrics"
        if (records[-1] if records else {}) != result.final:
            yield "its last record is not that of its metrics"
        expected: Set[int] = EvaluatedRounds(result.rounds, result.eval_every(), 0 in result.evaluated)
        if result.status == "done" and result.evaluated != expected:
            yield f"evaluations are missing between round {min(result.evaluated, default=0)} and {result.rounds}"

    def _sealed(self, path: Path) -> dict[str, Any] | None:
        """Return the object in a file as ``_json`` does, and report a checksum that does not match."""
        value = self._json(path)
        if value is not None and not strict_json.is_as_written(value):
            self.report(path, "its checksum does not fit: it was changed after it was written")
        return value

    def _json(self, path: Path) -> dict[str, Any] | None:
        """Return the object in a file; None, and a reported problem, where this flbench cannot read one."""
        self.files += 1
        try:
            value = strict_json.loads(read_regular(path))
        except FileNotFoundError:
            self.report(path, "it is missing")
            return None
        except (OSError, ValueError) as error:
            self.report(path, f"it cannot be read as JSON: {error}")
            return None
        schema = value.get("schema", strict_json.SCHEMA) if isinstance(value, dict) else None
        if not isinstance(schema, int) or schema > strict_json.SCHEMA:
            self.report(path, "expected an object" if schema is None else f"its schema {schema!r:.20} is unknown")
            return None
        return dict(value)
