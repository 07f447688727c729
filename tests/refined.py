"""A refined sweep, and a worker that executes it in no time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from flbench.config import content_of
from flbench.store import Attempt, Store
from tests.faults.stub import Done, execute_search

SWEEP = """
version: 1
name: refined
base: {rounds: 20, eval_every: 2, val_fraction: 0.1}
axes: {partition: [iid, "classes:2"], norm: [none, ln], lr: [0.001, 0.01, 0.1]}
seeds: [0, 1]
search: {axis: lr, refine: {}}
report: {cols: [partition]}
"""

GRID = {0.001, 0.01, 0.1}

#: Where the accuracy of each row and column peaks, as a power of ten, and what a decade beside it costs.
PEAKS = {("iid", "none"): (-1.5, 0.3), ("iid", "ln"): (-2, 0.01), ("classes:2", "none"): (-2, 0.01),
         ("classes:2", "ln"): (-3.0, 0.01)}  # fmt: skip


def accuracy(experiment: Any) -> float:
    peak, cost = PEAKS[experiment.partition.label(), experiment.norm.name]
    return 0.9 - cost * abs(math.log10(experiment.lr) - peak)


def train(experiment: Any, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Done:
    """Record the accuracy at once."""
    attempt.adopt(None)
    for round in sorted(experiment.evaluated_rounds()):
        value = accuracy(experiment) * round / experiment.rounds + 0.001 * experiment.seed
        attempt.record({"round": round, "acc": value / 2, "val_acc": value})
    attempt.publish(
        status="done", rounds=experiment.rounds, seconds=1.0, fingerprint=content_of(experiment.to_json()) or "toy",
        numerics={"device": "cpu"},
    )  # fmt: skip
    return Done("done", experiment.rounds)


go = partial(execute_search, train)


def tried(store: Store) -> dict[tuple[str, str], list[float]]:
    """Return the rates beyond the grid of every row and column; they have all rounds, and as many seeds as the grid."""
    found: dict[tuple[str, str], list[float]] = {}
    for run_id in store.run_ids():
        run = store.run(run_id)
        one: Any = run.experiment()
        assert one.lr in GRID or [result.rounds for result in run.results()] == [20]
        found.setdefault((one.partition.label(), one.norm.name), []).append(one.lr)
    for rates in found.values():
        assert len({rates.count(rate) for rate in rates}) == 1
    return {place: sorted({*rates} - GRID) for place, rates in found.items()}


#: The first column takes a second step for its first row: the first one gains 15 points, the second one less.
TRIED = {
    ("iid", "none"): [0.00316227766017, 0.0177827941004, 0.0316227766017, 0.056234132519],
    ("iid", "ln"): [0.00316227766017, 0.0056234132519, 0.0177827941004, 0.0316227766017],
    ("classes:2", "none"): [0.00316227766017, 0.0316227766017],
    ("classes:2", "ln"): [0.0001, 0.00316227766017],
}
