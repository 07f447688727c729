"""How far, how fast and how easily the rows of a column train, by pandas and scipy alone."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.runs import TAIL, accuracy, recorded, slope

#: The share of the lowest plateau to which rounds are counted, and the least share of 1 that is no guessing.
SHARE, FAILS = 0.95, 0.15

#: A row whose slope is within this of 0, by its interval, is at its plateau: points per doubling of rounds.
FLAT = 1.0

#: A learning rate works if it is at most this many points behind the best one.
WORKS = 2.0


class Column(NamedTuple):
    """The runs of a sweep with one partition and one number of local steps that were trained to the end."""

    sweep: str
    partition: str = "classes:1"
    E: int = 10
    lr: float | None = None  # this rate alone
    dataset: str | None = None  # this data set alone

    def runs(self, rounds: int | None = None, tail: int = TAIL) -> pd.DataFrame:
        """Return ``row``, ``lr``, ``seed``, ``records`` and, of the last evaluations, ``value`` and ``score``.

        The value is the accuracy on test data in percent, the score that on held-out data where there are any; NaN
        after a divergence.
        """
        return _runs(self, rounds, tail)

    def rates(self, rounds: int | None = None, tail: int = TAIL) -> pd.DataFrame:
        """Return the mean score of each rate (index) and row; NaN where a seed has none."""
        of = self.runs(rounds, tail)
        return of.pivot_table("score", "lr", "row", lambda some: some.mean(skipna=False), dropna=False)

    def chosen(self, rounds: int | None = None, tail: int = TAIL) -> pd.DataFrame:
        """Return the runs of each row at the rate with the best mean score."""
        best = self.rates(rounds, tail).idxmax()
        of = self.runs(rounds, tail)
        return of[of.lr == of.row.map(best)]

    def by_seed(self, rounds: int | None = None, tail: int = TAIL) -> pd.DataFrame:
        """Return the value of each seed (index) and row."""
        return self.chosen(rounds, tail).pivot(index="seed", columns="row", values="value")

    def slopes(self) -> pd.DataFrame:
        """Return the slope of the second half of the rounds of each row in points per doubling, with its half-width."""
        of = self.chosen()
        slopes = of.assign(slope=[100 * slope(run) for run in of.records]).groupby("row").slope
        n = slopes.count()
        return pd.DataFrame({"mean": slopes.mean(), "half_width": stats.t.ppf(0.975, n - 1) * slopes.sem()})

    def plateaus(self) -> pd.Series[float]:
        """Return the means of the rows that learn something and are at a plateau."""
        means, slopes = self.by_seed().mean(), self.slopes()
        return means[(means >= 100 * FAILS) & (slopes["mean"].abs() + slopes.half_width <= FLAT)]

    def level(self) -> float:
        """Return the accuracy to which rounds are counted, in percent: of the lowest plateau, or final value."""
        means, flat = self.by_seed().mean(), self.plateaus()
        return SHARE * float((flat if len(flat) else means[means >= 100 * FAILS]).min())

    def rounds_to_level(self) -> pd.DataFrame:
        """Return the rounds to the level of each seed (index) and row; infinite where it is not reached."""
        return self.rounds_to(self.level() / 100)

    def rounds_to(self, bound: float) -> pd.DataFrame:
        """Return the rounds to an accuracy, a share of 1, of each seed (index) and row; infinite where not reached."""
        of = self.chosen()
        first = [next((one["round"] for one in run if accuracy(one) >= bound), np.inf) for run in of.records]
        return of.assign(first=first).pivot(index="seed", columns="row", values="first")

    def cost_of_grid(self) -> pd.Series[float]:
        """Return by how much the score falls from the best rate to the worse of its two neighbours, in points."""
        rates = self.rates()
        falls = {}
        for row, scores in rates.items():
            known = scores.dropna()
            at = known.index.get_loc(known.idxmax())
            near = [known.iloc[one] if 0 <= one < len(known) else -np.inf for one in (at - 1, at + 1)]
            falls[row] = known.max() - min(near)
        return pd.Series(falls)

    def is_at_edge(self) -> pd.Series[bool]:
        """Return whether the chosen rate of a row is the least or the largest one that was tried."""
        tried, best = self.runs().groupby("row").lr.agg(["min", "max"]), self.rates().idxmax()
        return (best == tried["min"]) | (best == tried["max"])

    def decades(self) -> pd.DataFrame:
        """Return the width of the rates that work in powers of ten, for each seed (index) and row.

        Rates have twelve digits: without rounding, ranges of the same width would not be tied.
        """
        of = self.runs()
        widths = {
            (row, seed): np.log10(np.divide(*working(own.set_index("lr").value)[::-1]))
            for (row, seed), own in of.groupby(["row", "seed"])
        }
        return pd.Series(widths).round(9).unstack(0)

    def is_open(self) -> pd.Series[bool]:
        """Return whether the rates that work reach the least or the largest one that was tried, by means over seeds."""
        found = {}
        for row, own in self.runs().groupby("row"):
            means = own.groupby("lr").value.agg(lambda some: some.mean(skipna=False))
            low, high = working(means)
            found[row] = low == means.index.min() or high == means.index.max()
        return pd.Series(found)


#: Norms that are compared with none.
THREE = ("scale", "fn", "ln")

FASHION_MNIST = Column("fashion_mnist_long")

#: One class a client after three times the rounds, at the rates for fewer, by data set; thirty other seeds on digits.
LONG = {dataset: Column("three_times", dataset=dataset) for dataset in ("digits", "fashion_mnist")}
FRESH = Column("plateau_fresh")


def working(values: pd.Series[float]) -> tuple[float, float]:
    """Return the ends of the unbroken range of rates around the best one that work."""
    known = values.sort_index().fillna(-np.inf)
    good = (known.max() - known).round(7) <= WORKS
    at = known.index.get_loc(known.idxmax())
    low, high = good[:at][::-1].cumprod().sum(), good[at + 1 :].cumprod().sum()
    return float(known.index[at - low]), float(known.index[at + high])


@cache
def _runs(column: Column, rounds: int | None, tail: int) -> pd.DataFrame:
    of = recorded(column.sweep)
    of = of[(of.partition == column.partition) & (of.E == column.E) & (of["head"] == "linear")]
    of = of[of.lr == column.lr] if column.lr else of
    of = of[of.dataset == column.dataset] if column.dataset else of
    end = rounds or of.trained.max()
    of = of[(of.trained >= end) | (of.status == "diverged")]
    of = of.assign(row=of.method + " " + of.norm, score=np.nan, value=np.nan)
    for at, run in of.iterrows():
        known = [one for one in run.records if 0 < one["round"] <= end][-tail:]
        if known and known[-1]["round"] == end:
            of.loc[at, "value"] = 100 * np.mean([accuracy(one) for one in known])
            of.loc[at, "score"] = 100 * np.mean([one.get("val_acc", accuracy(one)) for one in known])
    return of[["row", "lr", "seed", "records", "value", "score"]]


def gain(one: pd.Series[float], other: pd.Series[float]) -> tuple[float, float, float]:
    """Return the mean of the differences by seed, the half-width of its 95 % interval, and p of the paired t-test."""
    gaps = (one - other).dropna()
    half_width = float(stats.t.ppf(0.975, len(gaps) - 1) * gaps.sem())
    return float(gaps.mean()), half_width, float(stats.ttest_1samp(gaps, 0).pvalue)


def leads_over_none(column: Column, tail: int = TAIL) -> list[tuple[float, float]]:
    """Return the mean lead over none of each of the three norms, with the half-width of its 95 % interval."""
    of = column.by_seed(tail=tail)
    return [gain(of[f"fedavg {norm}"], of["fedavg none"])[:2] for norm in THREE]


def ratios_of_other_seeds() -> list[pd.Series[float]]:
    """Return the rounds of each of the three norms in those of none, by the thirty other seeds."""
    rounds = FRESH.rounds_to(Column("plateau").level() / 100)
    return [rounds[f"fedavg {norm}"] / rounds["fedavg none"] for norm in THREE]


def p_of_ranks(one: pd.Series[float], other: pd.Series[float]) -> float:
    """Return p of the exact test that exchanges the values within seeds, of ranks over both, not corrected."""
    both = np.column_stack([one, other])
    ranks = stats.rankdata(both).reshape(both.shape)
    gaps = ranks[:, 0] - ranks[:, 1]
    flipped = np.abs(np.array([*product((1, -1), repeat=len(gaps))]) @ gaps)
    return float(np.mean(flipped >= abs(gaps.sum()) - 1e-9))
