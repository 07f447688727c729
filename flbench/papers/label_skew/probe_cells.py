"""The probes of each cell beside its accuracy: from the last record, and from the one before the first round."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flbench.config import Federated
from flbench.metric_specs import Record
from flbench.report.cells import Cell, tick_of
from flbench.report.runs import Collection, Run, compared_fields

#: The probes that are read.
READ = ("features", "drift", "sharpness")

#: The fields that decide what a probe measures before training.
_AT_BIRTH = ("dataset", "model", "norm", "bias", "precision", "partition", "clients", "min_size", "val_fraction")

Probes = Mapping[str, Any]

#: Reads a number from a run.
Value = Callable[[Run], float | None]


@dataclass(frozen=True)
class Probed:
    """A cell over its seeds: geometric means of lengths, growths and lambdas, plain means of the other numbers.

    None where no finished seed has the number.
    """

    cell: Cell
    acc: float | None  # the report's metric
    rank: float | None  # effective rank of the features
    share: float | None  # of the first singular value's square in all squares
    born_share: float | None  # the same before the first round
    norm: float | None  # of a feature
    growth: float | None  # ``norm`` over ``born_norm``
    growth_by_seed: Mapping[int, float]
    head_growth: float | None  # the longest class embedding over the longest before the first round
    agreement: float | None  # of the clients' updates
    born: float | None  # lambda_max before the first round
    born_local: float | None  # the largest over the clients that were probed
    final: float | None  # lambda_max at the end
    final_local: float | None

    @property
    def lr(self) -> float:
        """The learning rate of local training."""
        return float(self.cell.experiment.lr)

    @property
    def is_federated(self) -> bool:
        """Whether it was trained by a federated method."""
        return isinstance(self.cell.experiment, Federated)

    @property
    def norm_label(self) -> str:
        """The normalization, as printed."""
        return tick_of(self.cell, "norm").label

    @property
    def method_label(self) -> str:
        """The method with its settings, without the names of methods that compute the same."""
        experiment = self.cell.experiment
        return experiment.method.label() if isinstance(experiment, Federated) else "centralized"

    @property
    def row(self) -> tuple[str, str]:
        """Method and norm."""
        return self.method_label, self.norm_label

    @property
    def partition(self) -> str:
        """The partition, as printed."""
        return tick_of(self.cell, "partition").label if self.is_federated else "all data"

    @cached_property
    def column(self) -> tuple[tuple[str, str], ...]:
        """Everything but method, norm and learning rate: cells that share it may be compared."""
        names = (name for name in compared_fields(self.cell.experiment) if name not in ("method", "norm", "lr"))
        return (*((name, tick_of(self.cell, name).label) for name in names), ("data", self.cell.fingerprint or ""))

    @property
    def born_norm(self) -> float | None:
        """The norm of a feature before the first round."""
        return self.norm / self.growth if self.norm and self.growth else None

    @property
    def used(self) -> float | None:
        """The learning rate over 2 / lambda_max at the end: gradient descent is stable below 1."""
        return None if self.final is None else self.lr * self.final / 2


class Births:
    """Records of round 0, read once for all runs that begin with the same network on the same data.

    Methods, learning rates and numbers of steps change nothing before the first round: a sweep of thousands of runs has
    a few hundred beginnings.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._known: dict[tuple[Any, ...], Probes] = {}

    def of(self, run: Run) -> Probes:
        """Return the probes before the first round; empty where there were none."""
        if run.result is None or 0 not in run.result.evaluated or not probes_of(run.record):
            return {}
        key = (*(getattr(run.experiment, name, None) for name in _AT_BIRTH), run.experiment.seed, run.fingerprint)
        key = (*map(repr, key), run.result.probes)
        if key not in self._known:
            records = self._collection.source.metrics(run.run_id, run.result) if self._collection.source else []
            first = next((record for record in records if record["round"] == 0), None)
            self._known[key] = probes_of(first)
        return self._known[key]


def probes_of(record: Record | None) -> Probes:
    """Return the probes in a record."""
    return (record or {}).get("probes") or {}


def has_probes(run: Run) -> bool:
    """Return whether a run that finished recorded any of the probes that are read."""
    return any(name in probes_of(run.record) for name in READ)


def probed(cells: Iterable[Cell], births: Births) -> list[Probed]:
    """Return the cells with probes."""
    return [_probed(cell, births) for cell in cells if any(map(has_probes, cell.runs))]


def _probed(cell: Cell, births: Births) -> Probed:
    runs = [run for run in cell.runs if run.state == "done" and has_probes(run)]
    ends, begins = [probes_of(run.record) for run in runs], [births.of(run) for run in runs]

    def growth(size: Callable[[Probes], float | None]) -> list[float | None]:
        sizes = [(size(begin), size(end)) for begin, end in zip(begins, ends, strict=True)]
        return [after / before if before and after is not None else None for before, after in sizes]

    growths = growth(_norm)
    return Probed(
        cell=cell,
        acc=cell.summary.mean if cell.summary else None,
        rank=_mean([number(end, "features", "rank") for end in ends]),
        share=_mean([number(end, "features", "first_share") for end in ends]),
        born_share=_mean([number(begin, "features", "first_share") for begin in begins]),
        norm=_geometric([_norm(end) for end in ends]),
        growth=_geometric(growths),
        growth_by_seed={run.experiment.seed: one for run, one in zip(runs, growths, strict=True) if one},
        head_growth=_geometric(
            growth(lambda probes: max(probes.get("features", {}).get("head_norms") or (), default=None))
        ),
        agreement=_mean([number(end, "drift", "agreement") for end in ends]),
        born=_geometric([number(begin, "sharpness", "lambda_max") for begin in begins]),
        born_local=_geometric([_sharpest_client(begin) for begin in begins]),
        final=_geometric([number(end, "sharpness", "lambda_max") for end in ends]),
        final_local=_geometric([_sharpest_client(end) for end in ends]),
    )


def at_best_rate(tuned: Sequence[Probed]) -> list[Probed]:
    """Return the cells whose learning rate was chosen, or is the only one of their row and column.

    Where nothing is tuned (``tune: []``), a row with several rates has no best one: each of them is a column.
    """
    rates = Counter((one.column, one.row) for one in tuned)
    return [one for one in tuned if rates[one.column, one.row] == 1]


def number(probes: Probes, probe: str, name: str) -> float | None:
    """Return a finite number that a probe recorded."""
    value = probes.get(probe, {}).get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def by_seed(one: Probed, value: Value) -> dict[int, float]:
    """Return what finished runs of a cell recorded, for the seeds that have it."""
    found = {run.experiment.seed: value(run) for run in one.cell.runs if run.state == "done"}
    return {seed: known for seed, known in found.items() if known is not None}


def _norm(probes: Probes) -> float | None:
    return number(probes, "features", "norm")


def _sharpest_client(probes: Probes) -> float | None:
    local = [value for value in probes.get("sharpness", {}).get("local") or () if value is not None]
    return max(local, default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _geometric(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values above zero."""
    known = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(math.fsum(known) / len(known)) if known else None
