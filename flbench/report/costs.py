"""The costs of a cell: bytes, rounds of a search; and what its mean hides: the worst client, the worst class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flbench.halving import Halving
from flbench.metric_specs import value_of
from flbench.report.cells import Cell
from flbench.report.measures import bytes_of
from flbench.report.runs import Run
from flbench.report.stats import summarize


@dataclass(frozen=True)
class Costs:
    """Means over the seeds that recorded the number; None where none did."""

    bytes: float | None  # sent and received by all clients up to the round that counts
    worst: float | None  # accuracy of the worst client
    spread: float | None  # standard deviation of accuracy over clients
    recall: tuple[float | None, ...]  # of each class; None where no seed tested it
    budget: int | None  # rounds that a search gave to all settings and seeds of the row and column


def costs_of(cell: Cell, budget: int | None) -> Costs:
    """Return the costs of a cell."""
    records = [run.record for run in cell.runs if run.record is not None]
    recalls = [record["recall"] for record in records if record.get("recall")]
    return Costs(
        bytes=_mean([bytes_of(record) for record in records]),
        worst=_mean([value_of(record, "acc_worst") for record in records]),
        spread=_mean([value_of(record, "acc_sd") for record in records]),
        recall=tuple(_mean(values) for values in zip(*recalls, strict=False)),
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


def _mean(values: Sequence[float | None]) -> float | None:
    summary = summarize([value for value in values if value is not None])
    return summary.mean if summary else None
