"""Draws of random networks: lambda_max over the width, beside what theory says of each.

M is the width, T the number of samples, C that of outputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, cast, get_args

from flbench.messages import format_scalar
from flbench.report.cells import grouped
from flbench.report.metric_specs import Record
from flbench.report.runs import Run
from flbench.report.stats import Summary, summarize
from flbench.studies.sharpness import Sharpness

if TYPE_CHECKING:
    from flbench.theory.fits import Exponent
    from flbench.theory.order import Kappas

_ORDER = get_args(Sharpness.model_fields["normalized"].annotation)
_ACTIVATIONS = get_args(Sharpness.model_fields["activation"].annotation)
_LAYERS = Sharpness.model_fields["layers"].default
_SPELLED = {"relu": "ReLU"}


@dataclass(frozen=True)
class Family:
    """Random networks that differ in width and seed alone; ``samples`` is None where T = M."""

    activation: str
    sigma_w2: float
    sigma_b2: float
    layers: int
    outputs: int
    samples: int | None
    normalized: str

    @classmethod
    def of(cls, experiment: Sharpness) -> Family:
        """The one that an experiment's network is from."""
        return cls(**{name: getattr(experiment, name) for name in cls.__dataclass_fields__})

    def __lt__(self, other: Family) -> bool:
        return self._place < other._place

    @property
    def _place(self) -> tuple[int | float, ...]:
        before = (_ACTIVATIONS.index(self.activation), self.sigma_w2, self.sigma_b2, self.layers)
        return (*before, self.outputs, self.samples or 0, _ORDER.index(self.normalized))

    @property
    def network(self) -> str:
        """What theory calls it: activation and (sigma_w^2, sigma_b^2)."""
        name = _SPELLED.get(self.activation, self.activation)
        return f"{name} ({format_scalar(self.sigma_w2)}, {format_scalar(self.sigma_b2)})"

    @property
    def label(self) -> str:
        """The same, and the depth where it is not the paper's."""
        return self.network if self.layers == _LAYERS else f"{self.network}, L = {self.layers}"

    def samples_at(self, width: int) -> int:
        """T."""
        return self.samples or width

    @property
    def kappas(self) -> Kappas:
        """Alpha, kappa_1 and kappa_2 of the mean-field theory."""
        layered = self.normalized == "ln-all"
        return _kappas(self.activation, self.sigma_w2, self.sigma_b2, self.layers, layered=layered)


@cache
def _kappas(activation: str, sigma_w2: float, sigma_b2: float, layers: int, *, layered: bool) -> Kappas:
    from flbench.theory.gaussian import ACTIVATIONS
    from flbench.theory.order import layer_normalized, plain

    order = layer_normalized if layered else plain
    return order(ACTIVATIONS[activation], sigma_w2=sigma_w2, sigma_b2=sigma_b2, layers=layers).kappas()


@dataclass(frozen=True)
class Predicted:
    """What theory says of lambda_max: a value, bounds, or both; ``source`` says where."""

    source: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None

    def admits(self, found: float) -> bool:
        """Whether a measured value lies within the bounds."""
        return (self.lower is None or self.lower <= found) and (self.upper is None or found <= self.upper)


def predict(family: Family, width: int, record: Record) -> Predicted | None:
    """What theory says of one draw; None where it says nothing."""
    from flbench.theory import fisher
    from flbench.theory.gaussian import ACTIVATIONS

    at = {"width": width, "samples": family.samples_at(width)}
    match family.normalized:
        case "none":
            return Predicted("theorem 2.2", value=fisher.largest(family.kappas, **at))
        case "mean-last":
            found = fisher.bounds_with_mean_subtraction(family.kappas, **at, outputs=family.outputs)
            return Predicted("theorem 3.3", lower=found.lower, upper=found.upper)
        case "bn-last" if "sigmas" in record:
            import numpy as np

            found = fisher.bounds_with_last_batch_norm(family.kappas, np.asarray(record["sigmas"]), **at)
            return Predicted("eq. 19, by its outputs", lower=found.lower, upper=found.upper)
        case "bn-middle" if (phi := ACTIVATIONS[family.activation]).non_negative:
            return Predicted("theorem 3.4", lower=fisher.least_with_middle_batch_norm(phi, **at))
        case "ln-all" if {"eta1", "eta2", "eta3_squared"} <= record.keys():
            constants = fisher.LayerNormConstants(record["eta1"], record["eta2"], record["eta3_squared"])
            found = fisher.bounds_with_layer_norm(family.kappas, constants, **at, outputs=family.outputs)
            mean_field = record.get("lambda_mean_field")
            return Predicted("theorem 4.1, by its outputs", mean_field, found.lower, found.upper)
    return None


@dataclass(frozen=True)
class Point:
    """All draws of a family at one width, by seed."""

    family: Family
    width: int
    draws: Mapping[int, Record]

    @cached_property
    def values(self) -> tuple[float, ...]:
        """lambda_max of each draw."""
        return tuple(record["lambda_max"] for record in self.draws.values())

    @cached_property
    def summary(self) -> Summary:
        """Mean, sd and interval of lambda_max."""
        found = summarize(self.values)
        assert found is not None
        return found

    @property
    def median(self) -> float:
        """Of lambda_max."""
        return statistics.median(self.values)

    @cached_property
    def predictions(self) -> tuple[Predicted, ...]:
        """What theory says of each draw; empty where it says nothing of one."""
        found = [predict(self.family, self.width, record) for record in self.draws.values()]
        return tuple(one for one in found if one is not None) if None not in found else ()

    @cached_property
    def predicted(self) -> Predicted | None:
        """The medians over draws of what theory says."""
        if not self.predictions:
            return None
        value, lower, upper = (
            statistics.median(numbers) if None not in numbers else None
            for numbers in ([getattr(one, name) for one in self.predictions] for name in ("value", "lower", "upper"))
        )
        return Predicted(self.predictions[0].source, value, lower, upper)

    @property
    def ratio(self) -> float | None:
        """Measured over theory: of the mean to its value, or the median over draws of each to its own bound."""
        pairs = list(zip(self.values, self.predictions, strict=False))
        found = [value / at for value, one in pairs if (at := one.lower if one.value is None else one.value)]
        if not found:
            return None
        return statistics.fmean(found) if self.family.normalized == "none" else statistics.median(found)

    @property
    def admitted(self) -> int:
        """How many draws lie within the bounds of theory."""
        return sum(one.admits(value) for one, value in zip(self.predictions, self.values, strict=False))


@dataclass(frozen=True)
class Line:
    """A family over the width."""

    family: Family
    points: tuple[Point, ...]

    @property
    def draws(self) -> int:
        """Of all widths together."""
        return sum(len(point.values) for point in self.points)

    @cached_property
    def exponent(self) -> Exponent | None:
        """Of lambda_max over the width, fitted to the logarithms of all draws; None of a single width."""
        from flbench.theory.fits import exponent

        pairs = [(point.width, value) for point in self.points for value in point.values if value > 0]
        if len({width for width, _ in pairs}) < 2:
            return None
        return exponent([width for width, _ in pairs], [value for _, value in pairs])


def lines_of(runs: Sequence[Run]) -> tuple[Line, ...]:
    """The measured networks that nothing has trained."""
    drawn = [run for run in runs if run.record is not None and "lambda_max" in run.record and _untrained(run)]
    found = []
    for members in grouped(drawn, lambda run: Family.of(cast(Sharpness, run.experiment))):
        family = Family.of(members[0].experiment)
        points = [_point(family, same) for same in grouped(members, lambda run: run.experiment.width)]
        found.append(Line(family, tuple(points)))
    return tuple(found)


def _untrained(run: Run) -> bool:
    return cast(Sharpness, run.experiment).lr is None


def _point(family: Family, runs: Sequence[Run]) -> Point:
    """A draw that was measured twice, with and without its spectrum, counts once."""
    records = {run.experiment.seed: run.record for run in runs}
    draws = {seed: record for seed, record in sorted(records.items()) if record is not None}
    return Point(family, cast(Sharpness, runs[0].experiment).width, draws)
