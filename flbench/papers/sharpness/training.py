"""Gradient descent on random networks at many learning rates: which rates a network survives.

A run records lambda_max before its first step, so each learning rate is compared with 2 / lambda_max of the network it
was tried on: over draws lambda_max differs by tens of percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flbench.papers.sharpness.networks import Family, experiment_of, predict
from flbench.report.cells import grouped
from flbench.report.runs import Collection, Run

#: A loss that ever exceeds this multiple of its first value has grown.
GROWN = 1.1

#: A last loss below this share of the first has converged.
CONVERGED = 0.01

#: A loss above this, or one that is not a finite number, has exploded (the grey area of figure 2).
EXPLODED = 1e3


@dataclass(frozen=True)
class Descent:
    """One run: its first, highest and last loss, infinite where they were not finite."""

    family: Family
    width: int
    seed: int
    lr: float
    steps: int
    lambda_max: float
    first: float
    peak: float
    final: float

    @property
    def factor(self) -> float:
        """The learning rate in units of 2 / lambda_max of the network before its first step."""
        return self.lr * self.lambda_max / 2

    @property
    def grew(self) -> bool:
        """Whether the loss ever exceeded ``GROWN`` times its first value."""
        return self.peak > GROWN * self.first

    @property
    def peaked(self) -> bool:
        """Whether the loss exploded at some step."""
        return self.peak > EXPLODED

    @property
    def exploded(self) -> bool:
        """Whether the loss had exploded at the end."""
        return self.final > EXPLODED

    @property
    def converged(self) -> bool:
        """Whether the last loss is below ``CONVERGED`` of the first."""
        return self.final < CONVERGED * self.first


#: Whether a descent failed, by one criterion.
Failed = Callable[[Descent], bool]


def descents_of(runs: Sequence[Run], collection: Collection) -> tuple[Descent, ...]:
    """Return the finished and diverged runs that trained and recorded their beginning."""
    found = []
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
        draw = (Family.of(experiment), experiment.width, experiment.seed)
        found.append(Descent(*draw, experiment.lr, run.rounds, start["lambda_max"], start["loss"], peak, final))
    return tuple(sorted(found, key=lambda one: (one.family, one.width, one.seed, one.lr)))


@dataclass(frozen=True)
class Network:
    """One draw, with lambda_max before the first step, and its descents by rising learning rate."""

    family: Family
    width: int
    lambda_max: float
    descents: tuple[Descent, ...]

    def bracket(self, failed: Failed) -> tuple[float, float] | None:
        """Return the last rate before and the first rate of a failure; None where the rates tried do not bracket it."""
        first = next((index for index, one in enumerate(self.descents) if failed(one)), 0)
        return (self.descents[first - 1].lr, self.descents[first].lr) if first else None

    def highest(self, failed: Failed) -> float | None:
        """Return the highest rate below the first that failed; None where the rates tried do not bracket it."""
        found = self.bracket(failed)
        return found[0] if found else None

    @property
    def highest_converged(self) -> float | None:
        """The highest rate tried that converged, if any."""
        return max((one.lr for one in self.descents if one.converged), default=None)


def networks_of(descents: Sequence[Descent]) -> tuple[Network, ...]:
    """Return the draws, each with all its descents."""
    networks = []
    for same in grouped(descents, lambda one: (one.family, one.width, one.seed)):
        by_rate = tuple(sorted(same, key=lambda one: one.lr))
        networks.append(Network(by_rate[0].family, by_rate[0].width, by_rate[0].lambda_max, by_rate))
    return tuple(networks)


def predicted_rate(family: Family, width: int) -> float | None:
    """Return 2 / lambda_max by theory, of its lower bound where theory has no value (figure 2, right)."""
    predicted = predict(family, width, {})
    if predicted is None:
        return None
    eigenvalue = predicted.value if predicted.value is not None else predicted.lower
    return 2 / eigenvalue if eigenvalue else None
