"""Gradient descent on random networks with many learning rates: what is lost, and where.

A run records lambda_max before its first step, so that each learning rate is held against 2 / lambda_max of the very
network it was tried on: over draws lambda_max differs by tens of percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from flbench.papers.sharpness.draws import Family, predict
from flbench.report.cells import grouped
from flbench.report.runs import Collection, Run
from flbench.studies.sharpness import Sharpness

#: A loss that ever exceeds this multiple of its first value has grown.
GROWN = 1.1

#: A loss above this, or one that is not a finite number, has exploded (the grey area of figure 2).
EXPLODED = 1e3


@dataclass(frozen=True)
class Descent:
    """One run: losses after no step, at their highest, and after the last; infinite where they were not finite."""

    family: Family
    width: int
    seed: int
    lr: float
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
        """Whether the loss ever exceeded its first value by a tenth."""
        return self.peak > GROWN * self.first

    @property
    def peaked(self) -> bool:
        """Whether the loss exploded at some step."""
        return self.peak > EXPLODED

    @property
    def exploded(self) -> bool:
        """Whether the loss was exploded at the end."""
        return self.final > EXPLODED


def descents_of(runs: Sequence[Run], collection: Collection) -> tuple[Descent, ...]:
    """The finished and diverged runs that trained and whose beginning is on record."""
    trained = [run for run in runs if cast(Sharpness, run.experiment).lr is not None and run.result is not None]
    found = [one for run in trained if (one := _descent(run, collection)) is not None]
    return tuple(sorted(found, key=lambda one: (one.family, one.width, one.seed, one.lr)))


def _descent(run: Run, collection: Collection) -> Descent | None:
    experiment = cast(Sharpness, run.experiment)
    start = next((record for record in collection.records(run) if record["round"] == 0), None)
    if start is None or not {"lambda_max", "loss"} <= start.keys() or experiment.lr is None:
        return None
    end = run.record or {}
    return Descent(
        family=Family.of(experiment),
        width=experiment.width,
        seed=experiment.seed,
        lr=experiment.lr,
        lambda_max=start["lambda_max"],
        first=start["loss"],
        peak=_or_infinite(end.get("peak_loss")),
        final=_or_infinite(end.get("loss")),
    )


def _or_infinite(loss: float | None) -> float:
    return loss if loss is not None and math.isfinite(loss) else math.inf


@dataclass(frozen=True)
class Network:
    """One draw and its descents, by rising learning rate."""

    descents: tuple[Descent, ...]

    @property
    def family(self) -> Family:
        """What it was drawn from."""
        return self.descents[0].family

    @property
    def width(self) -> int:
        """M."""
        return self.descents[0].width

    @property
    def lambda_max(self) -> float:
        """Before the first step."""
        return self.descents[0].lambda_max

    def last_before(self, lost: Callable[[Descent], bool]) -> float | None:
        """The highest rate below the first that is ``lost``; None where the rates tried do not bracket it."""
        first = next((index for index, one in enumerate(self.descents) if lost(one)), 0)
        return self.descents[first - 1].lr if first else None

    def onset(self, lost: Callable[[Descent], bool]) -> float | None:
        """Between the last rate before and the first that is lost (their geometric mean); None likewise."""
        first = next((index for index, one in enumerate(self.descents) if lost(one)), 0)
        return math.sqrt(self.descents[first - 1].lr * self.descents[first].lr) if first else None


def networks_of(descents: Sequence[Descent]) -> tuple[Network, ...]:
    """The descents of each draw together."""
    return tuple(
        Network(tuple(sorted(same, key=lambda one: one.lr)))
        for same in grouped(descents, lambda one: (one.family, one.width, one.seed))
    )


def line_of_theory(family: Family, width: int) -> float | None:
    """The learning rate at which theory's line runs: 2 over lambda_max, or over its lower bound (figure 2, right)."""
    predicted = predict(family, width, {})
    if predicted is None:
        return None
    eigenvalue = predicted.value if predicted.value is not None else predicted.lower
    return 2 / eigenvalue if eigenvalue else None
