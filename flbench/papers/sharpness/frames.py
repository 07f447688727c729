"""Studies of kind ``sharpness`` as pandas frames: random networks as drawn, and gradient descent on them.

M is the width, T the number of samples, C the number of outputs. A run of gradient descent records lambda_max before
its first step, so each learning rate is compared with 2 / lambda_max of the network it was tried on: over draws
lambda_max differs by tens of percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, get_args

import numpy as np

from flbench.messages import format_scalar
from flbench.metric_specs import Record
from flbench.papers.evidence import by
from flbench.report.runs import Collection, Run
from flbench.studies.sharpness import Sharpness

if TYPE_CHECKING:
    import pandas as pd

    from flbench.theory.order import Kappas

#: Normalizations in the order of tables and legends.
NORMALIZATIONS: tuple[str, ...] = get_args(Sharpness.model_fields["normalized"].annotation)

_ACTIVATIONS = get_args(Sharpness.model_fields["activation"].annotation)
_LAYERS = Sharpness.model_fields["layers"].default

#: A loss above this, or one that is not a finite number, has exploded (the grey area of figure 2).
EXPLODED = 1e3

#: A loss that ever exceeds this multiple of its first value has grown.
GROWN = 1.1

#: A last loss below this share of the first has converged.
CONVERGED = 0.01


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
class Theory:
    """A value of lambda_max by theory, bounds on it, or both; ``source`` names the theorem."""

    source: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None


def theory(family: Family, width: int, record: Record) -> Theory | None:
    """Return what theory says of one draw, whose record some bounds need; None where it says nothing."""
    from flbench.theory import fisher
    from flbench.theory.gaussian import ACTIVATIONS

    at = {"width": width, "samples": family.samples or width}
    match family.normalized:
        case "none":
            return Theory("theorem 2.2", value=fisher.largest(_kappas(family), **at))
        case "mean-last":
            bounds = fisher.bounds_with_mean_subtraction(_kappas(family), **at, outputs=family.outputs)
            return Theory("theorem 3.3", lower=bounds.lower, upper=bounds.upper)
        case "bn-last" if "sigmas" in record:
            bounds = fisher.bounds_with_last_batch_norm(_kappas(family), np.asarray(record["sigmas"]), **at)
            return Theory("eq. 19, by its outputs", lower=bounds.lower, upper=bounds.upper)
        case "bn-middle" if (phi := ACTIVATIONS[family.activation]).non_negative:
            return Theory("theorem 3.4", lower=fisher.least_with_middle_batch_norm(phi, **at))
        case "ln-all" if {"eta1", "eta2", "eta3_squared"} <= record.keys():
            constants = fisher.LayerNormConstants(record["eta1"], record["eta2"], record["eta3_squared"])
            bounds = fisher.bounds_with_layer_norm(_kappas(family), constants, **at, outputs=family.outputs)
            mean_field = record.get("lambda_mean_field")
            return Theory("theorem 4.1, by its outputs", mean_field, bounds.lower, bounds.upper)
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


def stable_rate(family: Family, width: int) -> float | None:
    """Return 2 / lambda_max by theory, of its lower bound where theory has no value (figure 2, right)."""
    found = theory(family, width, {})
    eigenvalue = None if found is None else found.lower if found.value is None else found.value
    return 2 / eigenvalue if eigenvalue else None


#: Columns of ``draws``; theory's are missing where it says nothing.
DRAW = (
    *("family", "network", "normalized", "outputs", "square", "width", "seed", "lambda_max"),
    *("source", "value", "lower", "upper"),
)

#: Columns of ``descents``. ``factor``: the learning rate over 2 / lambda_max of the same network; ``line``: 2 /
#: lambda_max by theory; losses that were not finite are infinite. Beside them ``grew`` (the loss ever exceeded
#: ``GROWN`` times its first value), ``peaked`` and ``exploded`` (it was above ``EXPLODED`` at some step, at the end),
#: and ``converged``.
DESCENT = (
    *("family", "normalized", "width", "seed", "lr", "steps", "lambda_max"),
    *("first", "peak", "final", "factor", "line"),
)

#: Columns of ``highest_rates``.
NETWORK = (
    *("family", "normalized", "width", "seed", "lambda_max", "line"),
    *("grew", "peaked", "exploded", "onset", "converged"),
)


def draws(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row a random network that was not trained; one measured twice, with and without its spectrum, is one."""
    import pandas as pd

    rows = []
    for run in runs:
        experiment, record = experiment_of(run), run.record
        if record is None or "lambda_max" not in record or experiment.lr is not None:
            continue
        family = Family.of(experiment)
        known = theory(family, experiment.width, record) or Theory("")
        place = (family, family.label, family.normalized, family.outputs, family.samples is None)
        measured = (experiment.width, experiment.seed, record["lambda_max"])
        rows.append((*place, *measured, known.source, known.value, known.lower, known.upper))
    frame = pd.DataFrame(rows, columns=list(DRAW)).astype(dict.fromkeys(("value", "lower", "upper"), float))
    frame = frame.sort_values(["family", "width", "seed"], kind="stable")
    return frame.drop_duplicates(["family", "width", "seed"], keep="last").reset_index(drop=True)


def descents(runs: Sequence[Run], collection: Collection) -> pd.DataFrame:
    """Return a row a finished or diverged run that trained and recorded its beginning."""
    import pandas as pd

    rows = []
    for run in runs:
        experiment = experiment_of(run)
        if experiment.lr is None or run.result is None:
            continue
        start = next((record for record in collection.records(run) if record["round"] == 0), {})
        if not {"lambda_max", "loss"} <= start.keys():
            continue
        end = run.record or {}
        peak, final = (
            loss if loss is not None and math.isfinite(loss) else math.inf
            for loss in (end.get("peak_loss"), end.get("loss"))
        )
        family, lambda_max = Family.of(experiment), start["lambda_max"]
        place = (family, family.normalized, experiment.width, experiment.seed, experiment.lr, run.rounds)
        losses = (start["loss"], peak, final)
        rates = (experiment.lr * lambda_max / 2, stable_rate(family, experiment.width))
        rows.append((*place, lambda_max, *losses, *rates))
    frame = pd.DataFrame(rows, columns=list(DESCENT)).astype({"line": float})
    frame["grew"] = frame.peak > GROWN * frame["first"]
    frame["peaked"] = frame.peak > EXPLODED
    frame["exploded"] = frame.final > EXPLODED
    frame["converged"] = frame.final < CONVERGED * frame["first"]
    return frame.sort_values(["family", "width", "seed", "lr"], kind="stable").reset_index(drop=True)


def highest_rates(descents: pd.DataFrame) -> pd.DataFrame:
    """Return a row a network: lambda_max, the line of theory, and the rates that it survived.

    ``grew``, ``peaked`` and ``exploded`` are the highest rates below the first that failed so, in units of
    2 / lambda_max; missing where the rates tried do not bracket it. ``onset`` is the geometric mean of the two rates
    around the first growth, in the same unit, and ``converged`` the highest learning rate that converged.
    """
    import pandas as pd

    rows = []
    for (family, width, seed), own in by(descents, "family", "width", "seed"):
        below = {name: _last_before(own.factor, own[name]) for name in ("grew", "peaked", "exploded")}
        first = own.factor[own.grew].min()
        rows.append(
            {
                **{"family": family, "normalized": family.normalized, "width": width, "seed": seed},
                **{"lambda_max": own.lambda_max.iloc[0], "line": own.line.iloc[0], **below},
                **{"onset": math.sqrt(below["grew"] * first), "converged": own.lr[own.converged].max()},
            }
        )
    return pd.DataFrame(rows, columns=list(NETWORK))


def _last_before(rates: pd.Series[float], failed: pd.Series[bool]) -> float:
    """The last rate before the first that failed; NaN where none or the first of all failed."""
    before = rates[~failed.cummax()]
    return before.iloc[-1] if len(before) and failed.any() else math.nan
