"""The costs of a cell: bytes, rounds to a target; and what its mean hides: the worst client, the worst class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from flbench.halving import Halving
from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.cells import Cell
from flbench.report.runs import Run
from flbench.report.stats import summarize

#: All records of each run of a cell up to its round, by run id.
Records = Mapping[str, Sequence[Record]]

#: The value that each seed is to reach.
Targets = Mapping[int, float]


@dataclass(frozen=True)
class Reached:
    """When seeds reach the target: means over the ``n`` of ``requested`` seeds that do; None where none does."""

    n: int
    requested: int
    rounds: float | None
    bytes: float | None


@dataclass(frozen=True)
class Costs:
    """Means over the seeds that recorded the number; None where none did."""

    bytes: float | None  # sent and received by all clients up to the round that counts
    worst: float | None  # accuracy of the worst client
    spread: float | None  # standard deviation of accuracy over clients
    recall: tuple[float | None, ...]  # of each class; None where no seed tested it
    reached: Reached | None  # None where there is no target
    budget: int | None  # rounds that a search gave to all settings and seeds of the row and column


def costs_of(cell: Cell, curves: Records, targets: Targets | None, budget: int | None) -> Costs:
    """Return the costs of a cell."""
    records = [run.record for run in cell.runs if run.record is not None]
    recalls = [record["recall"] for record in records if record.get("recall")]
    done = [run for run in cell.runs if run.state == "done"]
    has_curves = bool(done) and all(run.has_curve for run in done)
    return Costs(
        bytes=_mean([_bytes_of(record) for record in records]),
        worst=_mean([value_of(record, "acc_worst") for record in records]),
        spread=_mean([value_of(record, "acc_sd") for record in records]),
        recall=tuple(_mean(values) for values in zip(*recalls, strict=False)),
        reached=_reached(cell, curves, targets) if targets is not None and has_curves else None,
        budget=budget,
    )


def budgets_of(runs: Sequence[Run], search: Halving) -> dict[str, int]:
    """Return the rounds that a search gave to the runs of each race, also those that a diverged run did not use."""
    budgets: Counter[str] = Counter()
    races: dict[str, str] = {}  # by cell
    for run in runs:
        cell_id = run.experiment.cell_id
        if cell_id not in races:
            races[cell_id] = search.race_of(run.experiment.to_json())
        ended = run.dropped or (run.rounds if run.result is not None else 0)
        budgets[races[cell_id]] += ended
    return budgets


def targets_of(cell: Cell, target: float | None, baseline: Cell | None) -> Targets | None:
    """Return the target of each seed: ``target``, else the final value of the baseline with the same seed."""
    if target is not None:
        return {run.experiment.seed: target for run in cell.runs}
    return baseline.by_seed if baseline is not None and baseline.complete else None


def _reached(cell: Cell, curves: Records, targets: Targets) -> Reached:
    """Return when the seeds reach their targets: at the first evaluation that is at least as good."""
    reaches, firsts = METRICS[cell.metric].reaches, []
    for run in cell.runs:
        if (target := targets.get(run.experiment.seed)) is not None:
            values = ((record, value_of(record, cell.metric)) for record in curves[run.run_id])
            reaching = (record for record, value in values if value is not None and reaches(value, target))
            firsts += list(islice(reaching, 1))
    rounds = _mean([record["round"] for record in firsts])
    return Reached(len(firsts), cell.requested, rounds, _mean([_bytes_of(record) for record in firsts]))


def _bytes_of(record: Record) -> float | None:
    """Return the bytes that all clients sent and received up to a record."""
    parts = [value for name in ("bytes_up", "bytes_down") if (value := value_of(record, name)) is not None]
    return sum(parts) if parts else None


def _mean(values: Sequence[float | None]) -> float | None:
    summary = summarize([value for value in values if value is not None])
    return summary.mean if summary else None
