"""Finished runs as one compact parquet file: out of a store, into another, or straight into a report.

One row a result: the experiment, the result, the metrics word for word and the environment, each as JSON text, and a
checksum of the row. No pickle, and nothing in a file names a place: where a run lies in a store follows from its
experiment alone. Host names and command lines stay at home. The same runs give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flbench.config import Experiment, canonical_json, content_of, parse_experiment
from flbench.errors import UserError
from flbench.regular import open_regular
from flbench.report.runs import Held
from flbench.store import Lease, Result, RunDir, RunRequest, Store, files, strict_json
from flbench.store.names import is_number, is_run_id
from flbench.store.records import check_record, parse_records

#: Version of the file's layout; raised when older code could not read it. Since 2 the last record, which the metrics
#: hold, is not repeated in the result.
SCHEMA = 2
_SCHEMA_KEY = b"flbench.schema"
_COLUMNS = ("run_id", "experiment", "result", "metrics", "environment")

#: Of environment.json: what tells about the machine's user rather than about the numbers.
PRIVATE = frozenset({"host", "argv", "cuda_visible_devices"})


@dataclass(frozen=True)
class Exported:
    """One result with everything behind it, as JSON where it may come from another version of flbench."""

    run_id: str
    experiment_json: str
    result: Result
    metrics: bytes
    environment: Mapping[str, Any]

    @cached_property
    def experiment(self) -> Experiment | None:
        """The typed experiment; None where this version of flbench cannot read it."""
        try:
            return parse_experiment(json.loads(self.experiment_json))
        except UserError:
            return None

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The metrics, one record an evaluated round."""
        return parse_records(self.metrics)

    def to_row(self) -> dict[str, str]:
        """The row of the file."""
        result = self.result.to_json()
        for known in ("final", "sha256"):
            del result[known]
        row = {
            "run_id": self.run_id,
            "experiment": self.experiment_json,
            "result": canonical_json(result),
            "metrics": self.metrics.decode(),
            "environment": canonical_json(self.environment),
        }
        return {**row, "sha256": _checksum(row)}

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Exported:
        """The opposite of ``to_row``; raises ValueError for anything that ``to_row`` would not have written."""
        if row["sha256"] != _checksum(row):
            raise ValueError("its checksum does not fit")
        if not is_run_id(row["run_id"]):
            raise ValueError("its run id is none")
        environment, _, raw = (_object(row, name) for name in ("environment", "experiment", "result"))
        raw.pop("sha256", None)  # of a result's own file, in the first layout
        metrics = row["metrics"].encode()
        records = [check_record(record) for record in strict_json.parse_lines(metrics)]
        result = Result.parse({"final": records[-1] if records else {}, **raw}, "")
        result = dataclasses.replace(result, file=f"{result.rounds:08d}.json")
        exported = cls(row["run_id"], row["experiment"], result, metrics, environment)
        exported.check()
        return exported.on_its_data()

    def on_its_data(self) -> Exported:
        """The same result under the id that names its data; ids of earlier results did not."""
        raw, content = strict_json.loads(self.experiment_json.encode()), self.result.fingerprint
        if content_of(raw) == content or "dataset" not in raw or not is_run_id(content):
            return self
        if (before := self.experiment) is None or before.run_id != self.run_id:
            return self
        experiment = before.on(before.dataset.holding(content))  # type: ignore[attr-defined]
        return dataclasses.replace(
            self,
            run_id=experiment.run_id,
            experiment_json=canonical_json(experiment.to_json()),
            result=dataclasses.replace(self.result, run_id=experiment.run_id),
        )

    def check(self) -> None:
        """Raise ValueError, or UserError, unless experiment, result and metrics belong together."""
        if self.result.run_id != self.run_id:
            raise ValueError(f"its result belongs to run {self.result.run_id!r}")
        if _sha256(self.metrics) != self.result.metrics_sha256 or len(self.metrics) != self.result.metrics_bytes:
            raise ValueError("its metrics are not those of its result")
        if {record.get("round") for record in self.records} != self.result.evaluated:
            raise ValueError("its metrics lack evaluations of its result")
        if (self.records[-1] if self.records else {}) != self.result.final:
            raise ValueError("its last record is not that of its metrics")
        self.wanted()

    def request(self) -> RunRequest:
        """What this result answers."""
        plugins = str(self.result.environment.get("plugins", ""))
        return RunRequest(
            self.result.wanted, self.result.evaluated, self.result.probes, self.result.fingerprint, plugins
        )

    def wanted(self) -> Experiment | None:
        """The experiment with as many rounds as this result answers; raises UserError where it cannot have so many."""
        if self.experiment is None or self.experiment.rounds == self.result.wanted:
            return self.experiment
        return parse_experiment({**self.experiment.to_json(), "rounds": self.result.wanted})


def _object(row: Mapping[str, str], column: str) -> dict[str, Any]:
    value = strict_json.loads(row[column].encode())
    if not isinstance(value, dict):
        raise ValueError(f"{column}: expected an object")
    return value


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _checksum(row: Mapping[str, str]) -> str:
    return hashlib.sha256(canonical_json([row[name] for name in _COLUMNS]).encode()).hexdigest()


def gather(store: Store, run_ids: Iterable[str], *, ends: bool = False) -> tuple[list[Exported], tuple[str, ...]]:
    """Every sound result of some runs, by run id and rounds, and a line about each that could not be taken.

    Args:
        store: where they are.
        run_ids: of which runs.
        ends: take them as if nobody had looked between the beginning and the last evaluation.
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
                one = _gather_one(run, result)
                taken.append(_ends_of(one) if ends else one)
            except (OSError, UserError, ValueError) as error:
                problems.append(f"run {run_id}, {result.rounds} rounds: {error}")
    return taken, tuple(problems)


def _gather_one(run: RunDir, result: Result) -> Exported:
    experiment = run.experiment()
    if experiment.run_id != run.run_id:
        raise ValueError("of an earlier version of a component, whose numbers are retired")
    attempt = next((attempt for attempt in run.attempts() if attempt.number == result.attempt), None)
    exported = Exported(
        run_id=run.run_id,
        experiment_json=canonical_json(experiment.to_json()),
        result=_published(result),
        metrics=strict_json.join_lines(run.metrics(result)),
        environment=_without_private(attempt.environment() if attempt else {}),
    )
    exported.check()
    return exported.on_its_data()


def _ends_of(whole: Exported) -> Exported:
    """What had been recorded with as many rounds between evaluations as there are rounds."""
    ends = {0, *(record["round"] for record in whole.records[-1:])}
    records = [record for record in whole.records if record["round"] in ends]
    metrics = strict_json.join_lines(records)
    result = dataclasses.replace(
        whole.result,
        evaluated=frozenset(record["round"] for record in records),
        metrics_sha256=_sha256(metrics),
        metrics_bytes=len(metrics),
    )
    return dataclasses.replace(whole, metrics=metrics, result=result)


def _published(result: Result) -> Result:
    return dataclasses.replace(result, environment=_without_private(result.environment))


def _without_private(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in PRIVATE}


def write(path: Path, exported: Iterable[Exported]) -> None:
    """Write an exported file in one step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [one.to_row() for one in exported]
    schema = pa.schema(
        [pa.field(name, pa.string(), nullable=False) for name in (*_COLUMNS, "sha256")],
        metadata={_SCHEMA_KEY: str(SCHEMA).encode()},
    )
    table = pa.Table.from_pylist(rows, schema=schema)
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd", compression_level=19, use_dictionary=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, content.getvalue().to_pybytes())


def read(path: Path) -> list[Exported]:
    """Everything in an exported file, verified; raises UserError for a file that is missing, damaged or newer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as file:
            table = pq.ParquetFile(file).read()
            rows = table.to_pylist()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: expected runs written by `flbench export`") from None
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a readable parquet file ({reason}); export the runs again") from None
    schema = (table.schema.metadata or {}).get(_SCHEMA_KEY, b"").decode(errors="replace")
    if not is_number(schema) or not {*_COLUMNS, "sha256"} <= {*table.column_names}:
        raise UserError(f"{path}: a parquet file, but not one written by `flbench export`")
    if int(schema) > SCHEMA:
        raise UserError(
            f"{path}: written by a newer flbench (schema {schema}, this one reads {SCHEMA}); update flbench"
        )
    return [_parse_row(path, number, row) for number, row in enumerate(rows)]


def _parse_row(path: Path, number: int, row: Mapping[str, str]) -> Exported:
    try:
        return Exported.from_row(row)
    except (ValueError, TypeError, KeyError, UserError) as error:
        # The id is shown as Python would write it: a damaged file may hold anything.
        raise UserError(f"{path}: row {number} (run {str(row['run_id'])[:16]!r}) cannot be used: {error}") from None


class FilesSource:
    """The runs of exported files, as a report's source."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._runs: dict[str, list[Exported]] = {}
        for path in paths:
            for one in read(path):
                self._add(one, path)

    def held(self) -> Iterator[Held]:
        """Every run in the files."""
        for run_id in sorted(self._runs):
            yield Held(run_id, self._runs[run_id][0].experiment)

    def results(self, run_id: str) -> Sequence[Result]:
        """The run's results, fewest rounds first."""
        return [one.result for one in self._runs.get(run_id, ())]

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """The records behind a result."""
        return next(one.records for one in self._runs[run_id] if one.result is result)

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """A file holds finished runs only."""
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


def contradiction(result: Result, records: Sequence[Mapping[str, Any]], new: Exported) -> str | None:
    """How a result contradicts another one of the same run; None where both can be true, as on different data."""
    if not result.is_of(new.request()):
        return None
    first, second = sorted((result, new.result), key=lambda one: one.rounds)
    diverged = first.status == "diverged" and (second.status == "done" or second.rounds > first.rounds)
    if diverged:
        return f"one diverged in round {first.rounds}, the other did not"
    if (differs := differing_round(records, new.records)) is not None:
        return f"first in round {differs}"
    return None


def differing_round(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> int | None:
    """The first round that both recorded with different numbers (times and probes apart); None where they agree."""
    known = {record["round"]: _numbers(record) for record in ours}
    return next((r["round"] for r in theirs if known.get(r["round"], _numbers(r)) != _numbers(r)), None)


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("seconds", "probes")}


Verdict = Literal["imported", "already there", "different numbers", "in use", "retired", "unreadable"]


def bring_in(store: Store, exported: Iterable[Exported], lease: Lease) -> list[tuple[Exported, Verdict]]:
    """Add what a store lacks, and say what happened to each result; nothing that is there is ever changed."""
    return [(one, _bring_in(store, one, lease)) for one in exported]


def _bring_in(store: Store, new: Exported, lease: Lease) -> Verdict:
    if new.experiment is None:
        return "unreadable"
    if new.experiment.run_id != new.run_id:
        return "retired"
    run = store.run(new.run_id)
    if any(contradiction(result, run.metrics(result), new) for result in run.results()):
        return "different numbers"
    if run.result_for(new.request()) is not None:
        return "already there"
    # The claim keeps workers away from this run while its files appear.
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
