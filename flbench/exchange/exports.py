"""Finished runs as one compact parquet file: the file's layout, writing and reading.

One row a result: the experiment, the result, the metrics word for word and the environment, each as JSON text, and a
checksum of the row. No pickle, and no paths: where a run belongs in a store follows from its experiment alone. Host
names and command lines are not exported. The same runs give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from flbench.config import Experiment, canonical_json, content_of, parse_experiment
from flbench.errors import UserError
from flbench.parquet_files import MOST_RATIO, unpacked
from flbench.regular import open_regular
from flbench.run_sources import StoredRun
from flbench.store import Result, RunRequest, files, strict_json
from flbench.store.names import is_number, is_run_id
from flbench.store.records import check_record, parse_records
from flbench.store.results import shared_facts

#: Version of the file's layout; raised when older code could not read it. Since 2 the last record, which the metrics
#: hold, is not repeated in the result.
SCHEMA = 2
_SCHEMA_KEY = b"flbench.schema"
_SIGNED = ("run_id", "experiment", "result", "metrics", "environment")
_COLUMNS = (*_SIGNED, "sha256")

#: A file may unpack to this many bytes at most: exported runs unpack to 12 times their size, 100,000 runs to 0.3 GB. A
#: small file may unpack to the second number, whatever its size.
MOST_BYTES, SMALL = 1 << 30, 4 << 20

#: Most bytes of a row's text; 100,000 evaluations have 30 million. The values in JSON take up to 20 times as much.
MOST_ROW = 1 << 26

#: Bytes and rows to decode at once.
_BATCH = 1 << 24, 1024


@dataclass(frozen=True)
class Exported:
    """One result with its experiment, metrics and environment; JSON where another version may have written it."""

    run_id: str
    experiment_json: str
    result: Result
    metrics: bytes
    environment: Mapping[str, Any]

    @cached_property
    def stored(self) -> StoredRun:
        """The run, with its typed experiment or why that cannot be read."""
        return StoredRun.read(self.run_id, lambda: parse_experiment(json.loads(self.experiment_json)))

    @property
    def experiment(self) -> Experiment | None:
        """The typed experiment; None where it cannot be read."""
        return self.stored.experiment

    @property
    def records(self) -> list[dict[str, Any]]:
        """The metrics, one record per evaluated round; parsed by each access: they take 8 times the memory."""
        return parse_records(self.metrics)

    def to_row(self) -> dict[str, str]:
        """Return the row of the file."""
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
        """Return what ``to_row`` wrote; raises ValueError for anything that it cannot have written."""
        if not all(isinstance(text, str) for text in row.values()):
            raise ValueError("a column is empty")
        if sum(map(len, row.values())) > MOST_ROW:
            raise ValueError(f"its texts have more than {MOST_ROW:,} characters")
        if row["sha256"] != _checksum(row):
            raise ValueError("its checksum does not fit")
        if not is_run_id(row["run_id"]):
            raise ValueError("its run id is none")
        trees: dict[str, dict[str, Any]] = {}
        for column in ("environment", "experiment", "result"):
            value = strict_json.loads(row[column].encode())
            if not isinstance(value, dict):
                raise ValueError(f"{column}: expected an object")
            trees[column] = value
        raw = trees["result"]
        raw.pop("sha256", None)  # of a result's own file, in the first layout
        metrics = row["metrics"].encode()
        records = [check_record(record) for record in strict_json.parse_lines(metrics)]
        result = Result.parse({"final": records[-1] if records else {}, **raw}, "")
        result = dataclasses.replace(result, file=f"{result.rounds:08d}.json")
        exported = cls(row["run_id"], row["experiment"], result, metrics, shared_facts(trees["environment"]))
        exported.check(records)
        return exported.on_its_data()

    def on_its_data(self) -> Exported:
        """Return the same result under the id that names its data; ids of earlier results did not name them."""
        raw, content = strict_json.loads(self.experiment_json.encode()), self.result.fingerprint
        if content_of(raw) == content or "dataset" not in raw or not is_run_id(content):
            return self
        if (before := self.experiment) is None or before.run_id != self.run_id:
            return self
        experiment = before.having(dataset=before.dataset.holding(content))  # type: ignore[attr-defined]
        return dataclasses.replace(
            self,
            run_id=experiment.run_id,
            experiment_json=canonical_json(experiment.to_json()),
            result=dataclasses.replace(self.result, run_id=experiment.run_id),
        )

    def check(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Raise ValueError, or UserError, unless experiment, result and metrics, which hold ``records``, agree."""
        if self.result.run_id != self.run_id:
            raise ValueError(f"its result belongs to run {self.result.run_id!r}")
        checksum = hashlib.sha256(self.metrics).hexdigest()
        if (checksum, len(self.metrics)) != (self.result.metrics_sha256, self.result.metrics_bytes):
            raise ValueError("its metrics are not those of its result")
        if {record["round"] for record in records} != self.result.evaluated:
            raise ValueError("its metrics lack evaluations of its result")
        if any(later["round"] <= earlier["round"] for earlier, later in pairwise(records)):
            raise ValueError("the rounds of its metrics do not ascend")
        if (records[-1] if records else {}) != self.result.final:
            raise ValueError("its last record is not that of its metrics")
        experiment = self.wanted()
        if experiment is not None and (what := self.result.contradicts(experiment)):
            raise ValueError(what)

    def request(self) -> RunRequest:
        """Return the request that this result answers."""
        result = self.result
        plugins = str(result.environment.get("plugins", ""))
        return RunRequest(result.wanted, result.evaluated, result.probes, result.fingerprint, plugins)

    def wanted(self) -> Experiment | None:
        """Return the experiment with the rounds that this result answers; raises UserError where they are not valid."""
        if self.experiment is None or self.experiment.rounds == self.result.wanted:
            return self.experiment
        return parse_experiment({**self.experiment.to_json(), "rounds": self.result.wanted})


def _checksum(row: Mapping[str, str]) -> str:
    return hashlib.sha256(canonical_json([row[name] for name in _SIGNED]).encode()).hexdigest()


def write(path: Path, exported: Iterable[Exported]) -> None:
    """Write an exported file in one step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [pa.field(name, pa.string(), nullable=False) for name in _COLUMNS],
        metadata={_SCHEMA_KEY: str(SCHEMA).encode()},
    )
    table = pa.Table.from_pylist([one.to_row() for one in exported], schema=schema)
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd", compression_level=19, use_dictionary=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, content.getvalue().to_pybytes())


def read(path: Path) -> list[Exported]:
    """Return everything in an exported file, verified; raises UserError for a missing, damaged or newer file."""
    exported = []
    for number, row in enumerate(_rows(path, _COLUMNS)):
        try:
            exported.append(Exported.from_row(row))
        except (ValueError, TypeError, KeyError, UserError) as error:
            # The id is shown as a Python literal, because a damaged file may hold control characters.
            shown = str(row["run_id"])[:16]
            raise UserError(f"{path}: row {number} (run {shown!r}) cannot be used: {error}") from None
    return exported


def run_ids(path: Path) -> set[str]:
    """Return the ids of the runs in an exported file; rows are not verified; raises UserError as ``read`` does."""
    return {str(row["run_id"]) for row in _rows(path, ("run_id",))}


def _rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of the rows of an exported file, unpacked a few rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        left = most = min(MOST_BYTES, max(SMALL, MOST_RATIO * len(data)))
        size = unpacked(data, most)
        whole = pq.ParquetFile(pa.BufferReader(data))
        _check_layout(path, whole.schema_arrow)
        for batch in whole.iter_batches(size.rows_within(*_BATCH), columns=list(columns)):
            left -= batch.nbytes
            if left < 0:
                raise ValueError(f"its rows have more than {most:,} bytes")
            yield from batch.to_pylist()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: expected runs written by `flbench export`") from None
    except MemoryError:  # pyarrow's, too
        raise UserError(f"{path}: its rows need more memory than is free here") from None
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a readable parquet file ({reason}); export the runs again") from None


def _check_layout(path: Path, schema: Any) -> None:
    """Raise UserError unless a parquet file has the schema of exported runs, in a version that this flbench reads."""
    import pyarrow as pa

    version = (schema.metadata or {}).get(_SCHEMA_KEY, b"").decode(errors="replace")
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    if not is_number(version) or any(texts.count(name) != 1 for name in _COLUMNS):
        raise UserError(f"{path}: a parquet file, but not one written by `flbench export`")
    if int(version) > SCHEMA:
        raise UserError(
            f"{path}: written by a newer flbench (schema {version}, this one reads {SCHEMA}); update flbench"
        )
