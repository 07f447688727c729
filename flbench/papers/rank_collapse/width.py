"""How the rank that is left at a large depth grows with the width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from flbench.papers.rank_collapse.depth import Net, path_name
from flbench.report.cells import grouped
from flbench.report.claim_text import interval, spread

if TYPE_CHECKING:
    from flbench.theory.fits import Exponent

#: Widths that an exponent needs at least.
FEWEST_WIDTHS = 3

#: What theorem 2 says of the exponent.
ROOT = 0.5


@dataclass(frozen=True)
class Growth:
    """One kind of network at several widths.

    Attributes:
        activation: of the networks.
        gamma: of their residual path; None: they have none.
        norm: their normalization.
        ranks: by width, each draw's mean r over the second half of its layers.
    """

    activation: str
    gamma: float | None
    norm: str
    ranks: Mapping[int, tuple[float, ...]]

    @property
    def family(self) -> tuple[str, float]:
        """Activation and path, as a network's."""
        return self.activation, self.gamma or 0.0

    @cached_property
    def exponent(self) -> Exponent | None:
        """Of r over d, every draw a point; None for too few widths."""
        from flbench.theory import fits

        if len(self.ranks) < FEWEST_WIDTHS:
            return None
        pairs = [(width, value) for width, values in self.ranks.items() for value in values]
        return fits.exponent([width for width, _ in pairs], [value for _, value in pairs])

    @property
    def reaches_root(self) -> bool:
        """Whether the exponent may be 1/2, or is larger."""
        found = self.exponent
        return found is not None and (found.value if found.high is None else found.high) >= ROOT

    @property
    def exponent_text(self) -> str:
        """``0.52 [0.50, 0.53]``; a dash for too few widths."""
        found = self.exponent
        return "–" if found is None else f"{found.value:.2f}{interval(found.low, found.high)}"

    @property
    def text(self) -> str:
        """The kind of network, r over sqrt(d), and the exponent."""
        ratios = [value / math.sqrt(width) for width, values in self.ranks.items() for value in values]
        name = f"{path_name(self.gamma)}, {self.norm}"
        widths = sorted(self.ranks)
        if self.exponent is None:
            return f"{name}: r = {spread(ratios)} √d at d = {', '.join(map(str, widths))} only (n={len(ratios)})"
        least, most = min(ratios), max(ratios)
        where = f"d = {widths[0]} to {widths[-1]}"
        return f"{name}: exponent {self.exponent_text}, r = {least:.2f} to {most:.2f} √d ({where}, n={len(ratios)})"


def growths(nets: Sequence[Net]) -> list[Growth]:
    """A growth for every kind of network; draws of networks that are not deep enough are left out."""
    found = []
    for same in grouped(nets, lambda net: net.kind):
        ranks: dict[int, tuple[float, ...]] = {}
        for net in same:
            if net.settled and (late := net.late()):
                ranks[net.experiment.width] = ranks.get(net.experiment.width, ()) + late
        if ranks:
            request = same[0].experiment
            found.append(Growth(request.activation, request.gamma, request.normalized, dict(sorted(ranks.items()))))
    return found
