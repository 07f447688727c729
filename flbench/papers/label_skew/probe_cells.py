"""What probes saw of each cell, beside its accuracy: the last record, and the one from before the first round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flbench.config import Federated, Training
from flbench.metric_specs import Record
from flbench.report.cells import Cell
from flbench.report.runs import Collection, Run, compared_fields

#: Probes that the synthesis reads.
READ = ("features", "drift", "sharpness")

#: What a network and its data are before training: the fields that decide what a probe sees at round 0.
_AT_BIRTH = ("dataset", "model", "norm", "bias", "precision", "partition", "clients", "min_size", "val_fraction")


@dataclass(frozen=True)
class Probed:
    """A cell in the middle of its seeds: lengths, growths and lambdas as geometric means, the others as plain ones.

    None where no seed that finished has the number.

    Attributes:
        cell: whose seeds these are.
        acc: the report's metric.
        rank: effective rank of the features.
        share: of the first singular value's square in all squares.
        norm: of a feature.
        born_share: ``share`` before the first round.
        growth: ``norm`` over what it was before the first round; ``growth_by_seed`` of each seed.
        head_growth: the longest class embedding over the longest before the first round.
        agreement: of the clients' updates.
        born: lambda_max before the first round; ``born_local`` the largest over the clients looked at.
        final: lambda_max at the end; ``final_local`` likewise.
    """

    cell: Cell
    acc: float | None
    rank: float | None
    share: float | None
    norm: float | None
    born_share: float | None
    growth: float | None
    growth_by_seed: Mapping[int, float]
    head_growth: float | None
    agreement: float | None
    born: float | None
    born_local: float | None
    final: float | None
    final_local: float | None

    @property
    def experiment(self) -> Training:
        """Any of the seeds' experiments."""
        return self.cell.training

    @property
    def lr(self) -> float:
        """Of local training."""
        return self.cell.training.lr

    @property
    def norm_label(self) -> str:
        """The normalization as it is printed."""
        return self.cell.tick("norm").label

    @property
    def method_label(self) -> str:
        """The method as it is printed; empty where training is not federated."""
        return self.cell.tick("method").label if isinstance(self.cell.experiment, Federated) else "centralized"

    @property
    def row(self) -> tuple[str, str]:
        """Method and norm."""
        return self.method_label, self.norm_label

    @property
    def partition(self) -> str:
        """As it is printed."""
        return self.cell.tick("partition").label if isinstance(self.cell.experiment, Federated) else "all data"

    @cached_property
    def column(self) -> tuple[tuple[str, str], ...]:
        """Everything besides method, norm and learning rate: what cells share that may be compared."""
        names = (name for name in compared_fields(self.cell.experiment) if name not in ("method", "norm", "lr"))
        return (*((name, self.cell.tick(name).label) for name in names), ("data", self.cell.fingerprint or ""))

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
        self._known: dict[tuple[Any, ...], Mapping[str, Any]] = {}

    def of(self, run: Run) -> Mapping[str, Any]:
        """What its probes saw before the first round; nothing where they did not look."""
        if run.result is None or 0 not in run.result.evaluated or not probes_of(run.record):
            return {}
        key = (*(getattr(run.experiment, name, None) for name in _AT_BIRTH), run.experiment.seed, run.fingerprint)
        key = (*map(repr, key), run.result.probes)
        if key not in self._known:
            records = self._collection.source.metrics(run.run_id, run.result) if self._collection.source else []
            first = next((record for record in records if record["round"] == 0), None)
            self._known[key] = probes_of(first)
        return self._known[key]


def probes_of(record: Record | None) -> Mapping[str, Any]:
    """What probes wrote into a record."""
    return (record or {}).get("probes") or {}


def has_probes(run: Run) -> bool:
    """Whether a run that finished recorded anything that the synthesis reads."""
    return any(name in probes_of(run.record) for name in READ)


def probed(cells: Iterable[Cell], births: Births) -> list[Probed]:
    """What is known of each cell with probes."""
    return [_probed(cell, births) for cell in cells if any(map(has_probes, cell.runs))]


def _probed(cell: Cell, births: Births) -> Probed:
    runs = [run for run in cell.runs if run.state == "done" and has_probes(run)]
    pairs = [(births.of(run), probes_of(run.record)) for run in runs]
    grown = {run.experiment.seed: _ratio(*pair, _length) for run, pair in zip(runs, pairs, strict=True)}
    ends, begins = [end for _, end in pairs], [birth for birth, _ in pairs]
    return Probed(
        cell=cell,
        acc=cell.summary.mean if cell.summary else None,
        rank=_mean(ends, "features", "rank"),
        share=_mean(ends, "features", "first_share"),
        born_share=_mean(begins, "features", "first_share"),
        norm=_geometric([_number(end, "features", "norm") for end in ends]),
        growth=_geometric(list(grown.values())),
        growth_by_seed={seed: growth for seed, growth in grown.items() if growth},
        head_growth=_geometric([_ratio(*pair, _longest) for pair in pairs]),
        agreement=_mean(ends, "drift", "agreement"),
        born=_geometric([_number(birth, "sharpness", "lambda_max") for birth in begins]),
        born_local=_geometric([_largest(birth) for birth in begins]),
        final=_geometric([_number(end, "sharpness", "lambda_max") for end in ends]),
        final_local=_geometric([_largest(end) for end in ends]),
    )


def _number(probes: Mapping[str, Any], probe: str, name: str) -> float | None:
    """A finite number that a probe recorded."""
    value = probes.get(probe, {}).get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _largest(probes: Mapping[str, Any]) -> float | None:
    """lambda_max on the sharpest of the clients looked at."""
    local = [value for value in probes.get("sharpness", {}).get("local") or () if value is not None]
    return max(local, default=None)


def _length(probes: Mapping[str, Any]) -> float | None:
    """The mean norm of features."""
    return _number(probes, "features", "norm")


def _longest(probes: Mapping[str, Any]) -> float | None:
    """The norm of the longest class embedding."""
    return max(probes.get("features", {}).get("head_norms") or (), default=None)


def _ratio(
    first: Mapping[str, Any], last: Mapping[str, Any], size: Callable[[Mapping[str, Any]], float | None]
) -> float | None:
    """How many times as large as at first something is at last."""
    before, after = size(first), size(last)
    return after / before if before and after is not None else None


def _mean(records: Sequence[Mapping[str, Any]], probe: str, name: str) -> float | None:
    known = [value for record in records if (value := _number(record, probe, name)) is not None]
    return math.fsum(known) / len(known) if known else None


def _geometric(values: Sequence[float | None]) -> float | None:
    """The geometric mean of what is above zero."""
    known = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(math.fsum(known) / len(known)) if known else None
