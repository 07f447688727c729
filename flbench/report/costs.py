"""What a cell cost, and who pays for its mean: bytes, rounds to a target, the worst client, the worst class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.cells import Cell
from flbench.report.runs import Collection, Run
from flbench.report.stats import summarize

#: What seeds must reach: a number for each.
Targets = Mapping[int, float]


@dataclass(frozen=True)
class Reached:
    """When the seeds of a cell got to the target: the means of those ``n`` of ``wished`` that did."""

    n: int
    wished: int
    rounds: float | None
    bytes: float | None


@dataclass(frozen=True)
class Costs:
    """Means over the seeds that recorded it, None where none did.

    Attributes:
        bytes: sent and received by all clients up to the round that counts.
        worst: accuracy of the worst client.
        spread: standard deviation of accuracy over clients.
        recall: of each class; None where no seed tested it.
        reached: None where there is no target.
    """

    bytes: float | None
    worst: float | None
    spread: float | None
    recall: tuple[float | None, ...]
    reached: Reached | None


def costs_of(cell: Cell, collection: Collection, targets: Targets | None) -> Costs:
    """The costs of a cell; ``targets`` makes its runs' records be read."""
    records = [run.record for run in cell.runs if run.record is not None]
    watched = any(run.has_curve for run in cell.runs)
    return Costs(
        bytes=_mean([bytes_of(record) for record in records]),
        worst=_mean([value_of(record, "acc_worst") for record in records]),
        spread=_mean([value_of(record, "acc_sd") for record in records]),
        recall=_recall(records),
        reached=_reached(cell, collection, targets) if targets is not None and watched else None,
    )


def targets_of(cell: Cell, target: float | None, baseline: Cell | None) -> Targets | None:
    """What each seed of a cell is to reach: ``target``, or what the baseline ends with with the same seed."""
    if target is not None:
        return {run.experiment.seed: target for run in cell.runs}
    return baseline.by_seed if baseline is not None and baseline.complete else None


def first_reaching(records: Sequence[Mapping[str, Any]], metric: str, target: float) -> Mapping[str, Any] | None:
    """The first of a run's records, in the order of rounds, that is as good as the target."""
    reaches = METRICS[metric].reaches
    return next(
        (one for one in records if (value := value_of(one, metric)) is not None and reaches(value, target)), None
    )


def bytes_of(record: Record) -> float | None:
    """Bytes sent and received by all clients up to a record."""
    parts = [value for name in ("bytes_up", "bytes_down") if (value := value_of(record, name)) is not None]
    return sum(parts) if parts else None


def _reached(cell: Cell, collection: Collection, targets: Targets) -> Reached:
    firsts = [first for run in cell.runs if (first := _first(run, cell.metric, collection, targets)) is not None]
    return Reached(
        len(firsts), cell.wished, _mean([one["round"] for one in firsts]), _mean([bytes_of(one) for one in firsts])
    )


def _first(run: Run, metric: str, collection: Collection, targets: Targets) -> Mapping[str, Any] | None:
    target = targets.get(run.experiment.seed)
    return None if target is None else first_reaching(collection.records(run), metric, target)


def _recall(records: Sequence[Record]) -> tuple[float | None, ...]:
    found = [record["recall"] for record in records if record.get("recall")]
    return tuple(_mean(list(values)) for values in zip(*found, strict=False))


def _mean(values: Sequence[float | None]) -> float | None:
    summary = summarize([value for value in values if value is not None])
    return summary.mean if summary else None
