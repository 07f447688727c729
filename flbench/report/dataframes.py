"""Runs as pandas data frames: one row a run, or one row an evaluated round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.config import Experiment
from flbench.literal import spreadsheet
from flbench.messages import format_scalar
from flbench.registry import Component
from flbench.report.runs import Run
from flbench.run_sources import Source

if TYPE_CHECKING:
    import pandas as pd


def tidy(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row a run: ids, every experiment field, state, the metrics at the round that counts, provenance.

    ``rounds`` is the round that counts. Accuracies are fractions; lists (recall, clients) and probes are left to
    ``curves``. Columns that a run has no value for are missing values.
    """
    return _frame([row_of(run) for run in runs])


def row_of(run: Run) -> dict[str, Any]:
    """Return a run as a row of ``tidy``."""
    row = {"run_id": run.run_id, "cell_id": run.experiment.cell_id, **flatten(run.experiment), "rounds": run.rounds}
    row |= {"state": run.state, "failure": run.failure}
    row |= {} if run.dropped is None else {"dropped": run.dropped}
    row |= {"refined": True} if run.refined else {}
    record = run.record or {}
    row |= {name: value for name, value in record.items() if isinstance(value, int | float) and name != "round"}
    if (result := run.result) is not None:
        row |= {"status": result.status, "reached": result.rounds, "fingerprint": result.fingerprint}
        public = {name: value for name, value in result.environment.items() if name != "host"}
        row |= {"changed_plugins": " ".join(run.changed_plugins)} if run.changed_plugins else {}
        row |= _below("numerics", result.numerics) | _below("environment", public)
    return row


def write_csv(path: Path, runs: Iterable[Run]) -> None:
    """Write the tidy frame as CSV, in which no string of a store is a formula for a spreadsheet."""
    frame = tidy(runs).rename(columns=spreadsheet)
    for name in frame.select_dtypes("object"):
        frame[name] = [spreadsheet(value) if isinstance(value, str) else value for value in frame[name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, lineterminator="\n")


def curves(source: Source, runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row an evaluated round of every finished run, up to the round that counts: run_id, round, metrics."""
    rows = [
        {"run_id": run.run_id, **record}
        for run in runs
        if run.result is not None
        for record in source.metrics(run.run_id, run.result)
        if record["round"] <= run.rounds
    ]
    return _frame(rows)


def _below(prefix: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping as one level with dotted names."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        out |= _below(f"{prefix}.{name}", value) if isinstance(value, Mapping) else {f"{prefix}.{name}": value}
    return out


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pd.DataFrame({name: pd.Series(values, dtype=_dtype(values)) for name, values in columns.items()})


def _dtype(values: Sequence[Any]) -> Any:
    """Return a column type that keeps integers where some runs have no value."""
    kinds = {type(value) for value in values if value is not None}
    fits: tuple[tuple[set[type], str], ...] = (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "float64"))
    return next((name for allowed, name in fits if kinds and kinds <= allowed), "object")


def flatten(experiment: Experiment, write: Callable[[Any], str] = format_scalar) -> dict[str, Any]:
    """Return every field as a plain value; a component as its label and its fields: ``method``, ``method.mu``.

    ``write`` returns the text of a setting in a label.
    """
    out: dict[str, Any] = {}
    for name in type(experiment).model_fields:
        value = getattr(experiment, name)
        if name == "probes":
            out[name] = ",".join(probe.label(write=write) for probe in value)
        elif isinstance(value, Component):
            out[name] = value.label(write=write)
            out.update({f"{name}.{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)})
        else:
            out[name] = value
    return out
