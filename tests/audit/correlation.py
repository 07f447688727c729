"""Rank correlations within strata, and means, with intervals whose units are groups; pandas, numpy and scipy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

#: The fewest groups that have an interval.
FEWEST_GROUPS = 6

#: An interval within this of zero excludes all but weak correlations.
WEAK = 0.3

Direction = Literal["rises", "falls", "flat", "open"]


@dataclass(frozen=True)
class Estimate:
    """A number over ``n`` cells, and its 95 % interval."""

    value: float  # NaN where it is not defined
    n: int
    groups: dict[str, int]  # how many there are of each unit
    interval: tuple[float, float] | None  # None for too few groups

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
    """Return Spearman's correlation of two columns within strata, with a jackknife of units on Fisher's scale.

    Ranks are taken within each stratum and divided by its size; their deviations from its mean are pooled. The
    variances of several units are added.
    """
    known = of.dropna(subset=[x, y])
    if known.empty:
        return Estimate(np.nan, 0, {}, None)
    known = known.assign(stratum=known.groupby(list(strata)).ngroup())
    groups = {unit: known[unit].nunique() for unit in units}
    value, interval = _pooled(known, x, y), None
    if np.isfinite(value) and groups[units[0]] >= FEWEST_GROUPS:
        some = [unit for unit in units if unit == units[0] or groups[unit] > 1]
        without = [[_pooled(known[known[unit] != one], x, y) for one in known[unit].unique()] for unit in some]
        if np.isfinite(np.concatenate(without)).all():
            variances = [(len(one) - 1) * np.var(_fisher(one)) for one in without]
            half_width = student(variances, [len(one) - 1 for one in without])
            interval = tuple(np.tanh(_fisher([value])[0] + np.array([-half_width, half_width])))
    return Estimate(value, len(known), groups, interval)


def mean(of: pd.DataFrame, x: str, unit: str) -> Estimate:
    """Return the mean of a column, with an interval whose unit is a group."""
    groups, value = of[unit].nunique(), float(of[x].mean())
    if groups < FEWEST_GROUPS:
        return Estimate(value, len(of), {unit: groups}, None)
    deviations = (of[x] - value).groupby(of[unit]).sum()
    variance = groups / (groups - 1) * (deviations**2).sum() / len(of) ** 2
    half_width = student([variance], [groups - 1])
    return Estimate(value, len(of), {unit: groups}, (value - half_width, value + half_width))


def student(variances: Sequence[float], freedoms: Sequence[int]) -> float:
    """Return the half-width of the 95 % interval of a sum with these variances (Welch)."""
    parts = np.array(variances)
    freedom = parts.sum() ** 2 / (parts**2 / np.array(freedoms)).sum()
    return float(stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum()))


def _fisher(rho: Sequence[float]) -> NDArray[np.float64]:
    return np.arctanh(np.clip(rho, 1e-9 - 1, 1 - 1e-9))


def _pooled(of: pd.DataFrame, x: str, y: str) -> float:
    """Return the pooled correlation; NaN where one of the columns has equal values alone."""
    ranks = of[[x, y]].groupby(of.stratum).rank(pct=True)
    centred = ranks - ranks.groupby(of.stratum).transform("mean")
    scale = np.sqrt((centred[x] ** 2).sum() * (centred[y] ** 2).sum())
    return float((centred[x] * centred[y]).sum() / scale) if scale > 1e-12 else np.nan
