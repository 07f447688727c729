"""Rank correlations within strata and means, with bootstrap intervals over groups, with pandas and numpy alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: Resamples, and the fewest groups that have an interval.
RESAMPLES, FEWEST_GROUPS = 2000, 6

#: An interval within this of zero excludes all but weak correlations.
WEAK = 0.3

Direction = Literal["rises", "falls", "flat", "open"]


@dataclass(frozen=True)
class Estimate:
    """A number over ``n`` cells, and its bootstrap: finite draws, none where there is no interval."""

    value: float  # NaN where it is not defined
    n: int
    groups: dict[str, int]  # how many there are of each unit that is resampled
    draws: NDArray[np.float64]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The middle 95 % of the draws."""
        return tuple(np.quantile(self.draws, [0.025, 0.975])) if len(self.draws) else None  # type: ignore[return-value]

    @property
    def direction(self) -> Direction:
        """What the interval says of a correlation."""
        low, high = self.interval or (-1, 1)
        if low > 0:
            return "rises"
        if high < 0:
            return "falls"
        return "flat" if max(-low, high) < WEAK else "open"


def correlation(of: pd.DataFrame, x: str, y: str, strata: Sequence[str], units: Sequence[str]) -> Estimate:
    """Return Spearman's correlation of two columns within strata, with a bootstrap over units.

    Ranks are taken within each stratum and divided by its size; their deviations from its mean are pooled. A resample
    draws the labels of each unit independently: a cell counts the product of the times that its labels were drawn.
    """
    known = of.dropna(subset=[x, y])
    if known.empty:
        return Estimate(np.nan, 0, {}, np.empty(0))
    stratum = known.groupby(list(strata)).ngroup()
    numbers = known[[x, y]].assign(stratum=stratum, **known[list(units)].apply(lambda own: pd.factorize(own)[0]))
    rho = float(_pooled(numbers.assign(draw=0), x, y).iloc[0])
    draws = [_pooled(some, x, y) for some in _resampled(numbers, units)] if np.isfinite(rho) else []
    return _estimate(rho, numbers, units, draws)


def mean(of: pd.DataFrame, x: str, unit: str) -> Estimate:
    """Return the mean of a column, with a bootstrap over a unit."""
    numbers = of[[x]].assign(**{unit: pd.factorize(of[unit])[0]})
    draws = [some.groupby("draw")[x].mean() for some in _resampled(numbers, [unit])]
    return _estimate(float(numbers[x].mean()), numbers, [unit], draws)


def _estimate(value: float, of: pd.DataFrame, units: Sequence[str], draws: Sequence[pd.Series]) -> Estimate:
    known = np.concatenate(draws) if draws else np.empty(0)
    known = known[np.isfinite(known)]
    groups = {unit: of[unit].nunique() for unit in units}
    return Estimate(value, len(of), groups, known if len(known) >= RESAMPLES / 2 else np.empty(0))


def _pooled(of: pd.DataFrame, x: str, y: str) -> pd.Series:
    """Return the pooled correlation of each draw; NaN where one of the columns has equal values alone."""
    place = of.draw.to_numpy() * (of.stratum.max() + 1) + of.stratum.to_numpy()
    ranks = of[[x, y]].groupby(place).rank(pct=True)
    centred = ranks - ranks.groupby(place).transform("mean")
    products = {"xy": centred[x] * centred[y], "xx": centred[x] ** 2, "yy": centred[y] ** 2}
    sums = pd.DataFrame(products).groupby(of.draw.to_numpy()).sum()
    scale = np.sqrt(sums.xx * sums.yy)
    return sums.xy / scale.where(scale > 1e-12)


def _resampled(of: pd.DataFrame, units: Sequence[str], portion: int = 100) -> Iterator[pd.DataFrame]:
    """Yield the rows of resamples, repeated as often as they count; nothing if the first unit has too few groups."""
    if of[units[0]].nunique() < FEWEST_GROUPS:
        return
    random = np.random.default_rng(18)
    for start in range(0, RESAMPLES, portion):
        times = np.ones((portion, len(of)), dtype=np.int64)
        for unit in units:
            count = of[unit].nunique()
            times *= random.multinomial(count, np.full(count, 1 / count), size=portion)[:, of[unit]]
        draw, row = np.divmod(np.repeat(np.arange(times.size), times.ravel()), len(of))
        yield of.iloc[row].reset_index(drop=True).assign(draw=start + draw)
