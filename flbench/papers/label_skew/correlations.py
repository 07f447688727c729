"""What the claims about mechanisms rest on: rank correlations and tables of means, and their numbers as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from flbench.report.claims import Claim, Verdict
from flbench.report.correlation import FEWEST_GROUPS, Correlation, Mean, spearman
from flbench.report.stats import CONFIDENCE

if TYPE_CHECKING:
    import pandas as pd

#: Direction of a correlation; ``open``: its interval allows several.
Direction = Literal["rises", "falls", "flat", "open"]

#: An interval within this of zero excludes all but weak correlations.
WEAK = 0.3

#: A correlation of at least this is strong.
STRONG = 0.6

#: Units of intervals: cells that share a norm or a method vary together.
NORMS, WITHIN_NORMS = ("norm", "method"), ("method", "norm")


@dataclass(frozen=True)
class RankCorrelation:
    """A rank correlation of two quantities."""

    what: str  # the two quantities
    where: str  # the cells
    correlation: Correlation  # within strata
    unit: str  # the unit of the interval, in the plural
    crossed: str = ""  # its second unit, in the plural

    @property
    def direction(self) -> Direction:
        """The direction, as far as its interval decides."""
        if self.correlation.interval is None:
            return "open"
        low, high = self.correlation.interval
        if low > 0:
            return "rises"
        if high < 0:
            return "falls"
        return "flat" if max(-low, high) < WEAK else "open"

    @property
    def text(self) -> str:
        """``rho 0.45 (0.21 to 0.63; n = 102 in 15 norms)``."""
        found = self.correlation
        if found.rho is None:
            return f"rho is not defined (n = {found.n})"
        if found.interval is None:
            only = "only " if found.groups < FEWEST_GROUPS else ""
            return f"rho {found.rho:z.2f} (no interval: n = {found.n} in {only}{self.units})"
        low, high = found.interval
        return f"rho {found.rho:z.2f} ({low:.2f} to {high:.2f}; n = {found.n} in {self.units})"

    @property
    def units(self) -> str:
        """``15 norms x 10 methods``."""
        found = self.correlation
        several = found.crossed is not None and found.crossed > 1
        return f"{found.groups} {self.unit}" + (f" x {found.crossed} {self.crossed}" if several else "")


@dataclass(frozen=True)
class MeansRow:
    """A row of a table of means: its names, and a mean for each column, None where there is none."""

    names: tuple[str, ...]
    means: tuple[Mean | None, ...]


@dataclass(frozen=True)
class Means:
    """A table of means."""

    title: str
    head: tuple[str, ...]  # of the names and the columns
    lines: tuple[MeansRow, ...]
    percent: bool = True  # whether the means are shares, shown in points


@dataclass(frozen=True)
class Mechanism:
    """A claim about why accuracies differ, and the numbers behind it."""

    name: str
    claim: Claim
    correlations: tuple[RankCorrelation, ...] = ()
    means: tuple[Means, ...] = ()


def verdict_on(found: RankCorrelation, within: Sequence[RankCorrelation] = ()) -> Verdict:
    """Return ``holds`` if a correlation is strong, and those ``within`` parts of the items rise, too."""
    if found.direction == "rises":
        is_strong = (found.correlation.rho or 0) >= STRONG
        return "holds" if is_strong and all(one.direction == "rises" for one in within) else "in part"
    return "inconclusive" if found.direction == "open" else "does not hold"


def correlate(
    items: pd.DataFrame, x: str, y: str, *, what: str, where: str, strata: Sequence[str], units: Sequence[str]
) -> RankCorrelation:
    """Return the correlation of two columns of the items that have both.

    Ranks are taken among the items of equal ``strata``. The interval's units are the items that share the first of
    ``units``, so that there is none for few of them, and those that share the second if there is one.
    """
    known = items.dropna(subset=[x, y])
    places = list(known[list(strata)].itertuples(index=False, name=None))
    groups = [known[unit].tolist() for unit in units]
    found = spearman(known[x].tolist(), known[y].tolist(), groups[0], places, groups[1] if len(groups) > 1 else None)
    return RankCorrelation(what, where, found, *(f"{unit}s" for unit in units))


def by_partition(items: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the items of each partition if there are several, then all of them as ``everywhere``."""
    parts = list(items.groupby("partition", sort=False))
    return [*((str(name), own) for name, own in parts if len(parts) > 1), ("everywhere", items)]


def mean_points_text(found: Mean) -> str:
    """``+3.2 points (1.1 to 5.0; n = 40)``."""
    low_high = (
        f"{100 * found.interval[0]:+z.1f} to {100 * found.interval[1]:+z.1f}" if found.interval else "no interval"
    )
    return f"{100 * found.mean:+z.1f} points ({low_high}; n = {found.n})"


def quartiles_text(values: pd.Series[float]) -> str:
    """Median and middle half: ``1.2 (0.4 to 3.1)``."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


READING = (
    "rho: Spearman's rank correlation within columns: ranks are among cells that differ only by method, norm and "
    "learning rate, unless stated otherwise; methods that compute the same count once. Its "
    f"{100 * CONFIDENCE:g} % interval is a jackknife of norms and of methods, because cells that share either vary "
    f"together; with fewer than {FEWEST_GROUPS} norms (within norms: methods) there is no interval. "
    "Intervals are not corrected for multiple comparisons: of twenty correlations that are zero, about one has an "
    "interval without zero."
)
