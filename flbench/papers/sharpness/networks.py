"""Random networks at initialization: lambda_max over the width, beside what theory predicts.

M is the width, T the number of samples, C the number of outputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, get_args

import numpy as np

from flbench.messages import format_scalar
from flbench.metric_specs import Record
from flbench.papers.evidence import Exponent, fit_exponent
from flbench.report.cells import grouped
from flbench.report.runs import Run
from flbench.report.stats import Summary, summarize
from flbench.studies.sharpness import Sharpness

if TYPE_CHECKING:
    from flbench.theory.order import Kappas

#: Normalizations in the order of tables and legends.
NORMALIZATIONS: tuple[str, ...] = get_args(Sharpness.model_fields["normalized"].annotation)

_ACTIVATIONS = get_args(Sharpness.model_fields["activation"].annotation)
_LAYERS = Sharpness.model_fields["layers"].default


def experiment_of(run: Run) -> Sharpness:
    """Return the experiment of a run of this kind."""
    assert isinstance(run.experiment, Sharpness)
    return run.experiment


@dataclass(frozen=True)
class Family:
    """Random networks that differ by width and seed alone; ``samples`` is None where T = M."""

    activation: str
    sigma_w2: float
    sigma_b2: float
    layers: int
    outputs: int
    samples: int | None
    normalized: str

    @classmethod
    def of(cls, experiment: Sharpness) -> Family:
        """Return the family of an experiment's network."""
        return cls(**{name: getattr(experiment, name) for name in cls.__dataclass_fields__})

    def __lt__(self, other: Family) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int | float, ...]:
        network = (_ACTIVATIONS.index(self.activation), self.sigma_w2, self.sigma_b2, self.layers)
        return (*network, self.outputs, self.samples or 0, NORMALIZATIONS.index(self.normalized))

    @property
    def network(self) -> str:
        """Activation and (sigma_w^2, sigma_b^2), as in the paper: ``ReLU (2, 0)``."""
        activation = {"relu": "ReLU"}.get(self.activation, self.activation)
        return f"{activation} ({format_scalar(self.sigma_w2)}, {format_scalar(self.sigma_b2)})"

    @property
    def label(self) -> str:
        """The network, with its depth where that is not the paper's."""
        return self.network if self.layers == _LAYERS else f"{self.network}, L = {self.layers}"

    @property
    def title(self) -> str:
        """The network with its depth, outputs and samples, for figures."""
        return f"{self.network}, L = {self.layers}, C = {self.outputs}, T = {self.samples or 'M'}"

    @property
    def unnormalized(self) -> Family:
        """The same without normalization."""
        return replace(self, normalized="none")


@dataclass(frozen=True)
class Prediction:
    """A value of lambda_max by theory, bounds on it, or both; ``source`` names the theorem."""

    source: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None


def predict(family: Family, width: int, record: Record) -> Prediction | None:
    """Return the prediction for one draw, whose record some bounds need; None where theory has none."""
    from flbench.theory import fisher
    from flbench.theory.gaussian import ACTIVATIONS

    at = {"width": width, "samples": family.samples or width}
    match family.normalized:
        case "none":
            return Prediction("theorem 2.2", value=fisher.largest(_kappas(family), **at))
        case "mean-last":
            bounds = fisher.bounds_with_mean_subtraction(_kappas(family), **at, outputs=family.outputs)
            return Prediction("theorem 3.3", lower=bounds.lower, upper=bounds.upper)
        case "bn-last" if "sigmas" in record:
            bounds = fisher.bounds_with_last_batch_norm(_kappas(family), np.asarray(record["sigmas"]), **at)
            return Prediction("eq. 19, by its outputs", lower=bounds.lower, upper=bounds.upper)
        case "bn-middle" if (phi := ACTIVATIONS[family.activation]).non_negative:
            return Prediction("theorem 3.4", lower=fisher.least_with_middle_batch_norm(phi, **at))
        case "ln-all" if {"eta1", "eta2", "eta3_squared"} <= record.keys():
            constants = fisher.LayerNormConstants(record["eta1"], record["eta2"], record["eta3_squared"])
            bounds = fisher.bounds_with_layer_norm(_kappas(family), constants, **at, outputs=family.outputs)
            mean_field = record.get("lambda_mean_field")
            return Prediction("theorem 4.1, by its outputs", mean_field, bounds.lower, bounds.upper)
    return None


@cache
def _kappas(family: Family) -> Kappas:
    """Return alpha, kappa_1 and kappa_2 of the mean-field theory."""
    from flbench.theory.gaussian import ACTIVATIONS
    from flbench.theory.order import order_parameters

    found = order_parameters(
        ACTIVATIONS[family.activation],
        sigma_w2=family.sigma_w2,
        sigma_b2=family.sigma_b2,
        layers=family.layers,
        layer_norm=family.normalized == "ln-all",
    )
    return found.kappas()


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
        """Mean, standard deviation and interval of lambda_max."""
        found = summarize(self.values)
        assert found is not None
        return found

    @cached_property
    def predictions(self) -> tuple[Prediction, ...]:
        """The prediction for each draw; empty where one has none."""
        found = [predict(self.family, self.width, record) for record in self.draws.values()]
        return tuple(one for one in found if one is not None) if None not in found else ()

    @cached_property
    def predicted(self) -> Prediction | None:
        """The medians of the predictions over draws."""
        if not self.predictions:
            return None
        value, lower, upper = (
            statistics.median(numbers) if None not in numbers else None
            for numbers in ([getattr(one, name) for one in self.predictions] for name in ("value", "lower", "upper"))
        )
        return Prediction(self.predictions[0].source, value, lower, upper)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted: the mean to the value of theorem 2.2, else the median of draws to their own."""
        pairs = zip(self.values, self.predictions, strict=False)
        ratios = [value / at for value, one in pairs if (at := one.lower if one.value is None else one.value)]
        if not ratios:
            return None
        return statistics.fmean(ratios) if self.family.normalized == "none" else statistics.median(ratios)

    @property
    def admitted(self) -> int:
        """The number of draws within the bounds of theory."""
        return sum(
            (one.lower is None or one.lower <= value) and (one.upper is None or value <= one.upper)
            for one, value in zip(self.predictions, self.values, strict=False)
        )


@dataclass(frozen=True)
class Curve:
    """A family over the width."""

    family: Family
    points: tuple[Point, ...]

    @property
    def draws(self) -> int:
        """The number of draws, over all widths."""
        return sum(len(point.values) for point in self.points)

    @cached_property
    def exponent(self) -> Exponent | None:
        """The exponent of lambda_max over the width; None for a single width."""
        return fit_exponent({point.width: point.values for point in self.points})


def curves_of(runs: Sequence[Run]) -> tuple[Curve, ...]:
    """Return the measured families, without networks that were trained."""
    measured = [
        run for run in runs if run.record is not None and "lambda_max" in run.record and experiment_of(run).lr is None
    ]
    curves = []
    for members in grouped(measured, lambda run: Family.of(experiment_of(run))):
        family, points = Family.of(experiment_of(members[0])), []
        for same in grouped(members, lambda run: experiment_of(run).width):
            # A draw that was measured twice, with and without its spectrum, counts once.
            records = {run.experiment.seed: run.record for run in same}
            draws = {seed: record for seed, record in sorted(records.items()) if record is not None}
            points.append(Point(family, experiment_of(same[0]).width, draws))
        curves.append(Curve(family, tuple(points)))
    return tuple(curves)
