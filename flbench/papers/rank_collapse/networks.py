"""Random networks at initialization: the effective rank r over depth, and what is left of it over the width d."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flbench.messages import format_scalar
from flbench.papers.evidence import Exponent, exponent_text, fit_exponent, mean_text
from flbench.report.cells import grouped
from flbench.report.runs import Collection, Run
from flbench.studies.rank import Rank

#: A network without normalization is deep enough to be judged where the second eigenvalue of M has fallen by this many
#: factors of e against the first (``flbench.theory.rank.collapse_rate``); its rank is then below 1.02.
DEEP_ENOUGH = 5.0

#: Widths that an exponent needs.
FEWEST_WIDTHS = 3

#: Normalizations in the order of tables.
NORMS = ("none", "bn-rms", "bn")

Records = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Net:
    """All draws of one network."""

    runs: tuple[Run, ...]  # one a draw
    records: tuple[Records, ...]  # of the layers that were recorded, for every finished draw

    @property
    def experiment(self) -> Rank:
        """The experiment of any draw: they differ by their seed."""
        experiment = self.runs[0].experiment
        assert isinstance(experiment, Rank)
        return experiment

    @property
    def layers(self) -> int:
        """The depth."""
        return self.runs[0].rounds

    @property
    def family(self) -> tuple[str, float]:
        """Activation and residual path: networks that are compared with and without normalization."""
        return self.experiment.activation, self.experiment.gamma or 0.0

    @property
    def kind(self) -> tuple[str, float, int]:
        """The family and the place of the normalization: networks that differ by their size alone."""
        return (*self.family, NORMS.index(self.experiment.normalized))

    @cached_property
    def folds(self) -> float:
        """Factors of e by which the first eigenvalue of M leads after all layers without normalization."""
        from flbench.theory.rank import collapse_rate

        return self.layers * collapse_rate(self.experiment.width, self.experiment.gamma) if self.layers else 0.0

    @property
    def is_deep_enough(self) -> bool:
        """Whether it is deep enough to show where its rank ends."""
        return self.folds >= DEEP_ENOUGH

    @cached_property
    def at_end(self) -> tuple[float, ...]:
        """R in the last layer, of each draw that is finite there."""
        ends = (one[-1] for one in self.records if one and one[-1]["round"] == self.layers)
        return tuple(end["rank"] for end in ends if end["rank"] is not None)

    def late(self, name: str = "rank") -> tuple[float, ...]:
        """Return each draw's mean over the recorded layers of the second half."""
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
    """Return the networks, in the order of tables."""
    nets = [
        Net(tuple(members), tuple(tuple(collection.records(run)) for run in members if run.result is not None))
        for members in grouped(runs, lambda run: run.cell)
    ]
    return sorted(nets, key=lambda net: (*net.kind, net.experiment.width, net.experiment.samples or 0, net.layers))


def path_name(gamma: float | None) -> str:
    """``plain`` without a residual path, else ``γ 0.1``."""
    return f"γ {format_scalar(gamma)}" if gamma else "plain"


@dataclass(frozen=True)
class Growth:
    """One kind of network at several widths."""

    net: Net  # one of the networks
    ranks: Mapping[int, tuple[float, ...]]  # by width, each draw's mean r over the second half of its layers

    @cached_property
    def exponent(self) -> Exponent | None:
        """The exponent of r over d; None for too few widths."""
        return fit_exponent(self.ranks, fewest=FEWEST_WIDTHS)

    @cached_property
    def last_exponent(self) -> Exponent | None:
        """The exponent over the two largest widths, as growth may slow down."""
        return fit_exponent(dict(list(self.ranks.items())[-2:]))

    @property
    def text(self) -> str:
        """The kind of network, r over sqrt(d), and the exponent."""
        ratios = [value / math.sqrt(width) for width, values in self.ranks.items() for value in values]
        name = f"{path_name(self.net.experiment.gamma)}, {self.net.experiment.normalized}"
        widths = sorted(self.ranks)
        if self.exponent is None:
            return f"{name}: r = {mean_text(ratios)} √d at d = {', '.join(map(str, widths))} only (n={len(ratios)})"
        least, most = min(ratios), max(ratios)
        where = f"d = {widths[0]} to {widths[-1]}, n={len(ratios)}"
        last = f"{exponent_text(self.last_exponent)} from {widths[-2]} to {widths[-1]}"
        return f"{name}: exponent {exponent_text(self.exponent)}, {last}, r = {least:.2f} to {most:.2f} √d ({where})"


def growths(nets: Sequence[Net]) -> list[Growth]:
    """Return the growth of every kind of network, from the networks that are deep enough."""
    found = []
    for same in grouped(nets, lambda net: net.kind):
        ranks: dict[int, tuple[float, ...]] = {}
        for net in same:
            if net.is_deep_enough and (late := net.late()):
                ranks[net.experiment.width] = ranks.get(net.experiment.width, ()) + late
        if ranks:
            found.append(Growth(same[0], dict(sorted(ranks.items()))))
    return found
