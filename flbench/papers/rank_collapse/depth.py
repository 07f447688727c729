"""Random networks over depth as a report sees them: all draws of one network, and what they say at the end."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flbench.messages import format_scalar
from flbench.report.cells import grouped
from flbench.report.runs import Collection, Run
from flbench.studies.rank import Rank

#: A network without normalization is deep enough to be judged where the second eigenvalue of M has fallen by so many
#: factors of e against the first (``flbench.theory.rank.collapse_rate``); its rank is then below 1.02.
SETTLED = 5.0

#: Normalizations in the order of tables.
NORMS = ("none", "bn-rms", "bn")

Records = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Net:
    """All draws of one network.

    Attributes:
        runs: one a draw.
        records: of the layers that were recorded, for every finished draw.
    """

    runs: tuple[Run, ...]
    records: tuple[Records, ...]

    @property
    def experiment(self) -> Rank:
        """Any draw's experiment: they differ by their seed."""
        experiment = self.runs[0].experiment
        assert isinstance(experiment, Rank)
        return experiment

    @property
    def layers(self) -> int:
        """Its depth."""
        return self.runs[0].rounds

    @property
    def family(self) -> tuple[str, float]:
        """Activation and path: what is compared with and without normalization."""
        return self.experiment.activation, self.experiment.gamma or 0.0

    @property
    def kind(self) -> tuple[str, float, int]:
        """The same with the place of its normalization: what differs in size alone."""
        return (*self.family, NORMS.index(self.experiment.normalized))

    @cached_property
    def folds(self) -> float:
        """Factors of e by which the first eigenvalue of M leads after all layers if nothing is normalized."""
        from flbench.theory.rank import collapse_rate

        return self.layers * collapse_rate(self.experiment.width, self.experiment.gamma) if self.layers else 0.0

    @property
    def settled(self) -> bool:
        """Whether it is deep enough to say where its rank ends."""
        return self.folds >= SETTLED

    @cached_property
    def at_end(self) -> tuple[float, ...]:
        """What r is in the last layer, for each draw that is finite there."""
        ends = (one[-1] for one in self.records if one and one[-1]["round"] == self.layers)
        return tuple(end["rank"] for end in ends if end["rank"] is not None)

    def late(self, name: str = "rank") -> tuple[float, ...]:
        """Each draw's mean over the recorded layers of the second half."""
        found = (self._late(one, name) for one in self.records)
        return tuple(statistics.fmean(values) for values in found if values)

    @cached_property
    def least(self) -> float | None:
        """The least r of any draw and any layer of the second half."""
        return min((value for one in self.records for value in self._late(one, "rank")), default=None)

    def _late(self, records: Records, name: str) -> list[float]:
        values = (record.get(name) for record in records if record["round"] > self.layers / 2)
        return [value for value in values if value is not None]


def nets_of(runs: Sequence[Run], collection: Collection) -> list[Net]:
    """The networks in the order in which tables name them."""
    nets = [
        Net(tuple(members), tuple(tuple(collection.records(run)) for run in members if run.result is not None))
        for members in grouped(runs, lambda run: run.cell)
    ]
    return sorted(nets, key=_order)


def _order(net: Net) -> tuple[Any, ...]:
    request = net.experiment
    return (*net.kind, request.width, request.samples or 0, net.layers)


def path_name(gamma: float | None) -> str:
    """The residual path in a word: ``plain`` where there is none, else ``γ 0.1``."""
    return f"γ {format_scalar(gamma)}" if gamma else "plain"


def sizes(nets: Sequence[Net]) -> str:
    """``d = 8 to 128, 1000 layers``."""
    return f"d = {_range([net.experiment.width for net in nets])}, {_range([net.layers for net in nets])} layers"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
