"""How far, how fast and at which rates the rows of a column train, by pandas and scipy alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.cells import judge
from tests.audit.runs import TAIL, accuracy, recorded

#: The share of the lowest accuracy to which rounds are counted, and the least multiple of guessing that counts.
SHARE, FAILS = 0.95, 0.15

#: Norms that are compared with none.
THREE = ("scale", "fn", "ln")


class Column(NamedTuple):
    """The runs of a sweep with one partition and one number of local steps that were trained to the end."""

    sweep: str
    partition: str = "classes:1"
    E: int = 10

    def runs(self, rounds: int | None = None, tail: int = TAIL) -> pd.DataFrame:
        """Return ``row``, ``lr``, ``seed``, ``records`` and, of the last evaluations, ``value`` and ``score``.

        The value is the accuracy on test data in percent, the score that on held-out data; NaN after a divergence.
        """
        of = recorded(self.sweep)
        of = of[(of.partition == self.partition) & (of.E == self.E) & (of["head"] == "linear")]
        end = rounds or of.trained.max()
        of = of[(of.trained >= end) | (of.status == "diverged")]
        of = of.assign(row=of.method + " " + of.norm, score=np.nan, value=np.nan)
        for at, run in of.iterrows():
            known = [one for one in run.records if 0 < one["round"] <= end][-tail:]
            if known and known[-1]["round"] == end:
                of.loc[at, "value"] = 100 * np.mean([accuracy(one) for one in known])
                of.loc[at, "score"] = 100 * np.mean([one["val_acc"] for one in known])
        return of[["row", "lr", "seed", "records", "value", "score"]]

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

    def level(self) -> float:
        """Return the accuracy to which rounds are counted, in percent."""
        means = self.by_seed().mean()
        return SHARE * float(means[means > 100 * FAILS].min())

    def rounds_to_level(self) -> pd.DataFrame:
        """Return the rounds to the level of each seed (index) and row; infinite where it is not reached."""
        of, bound = self.chosen(), self.level() / 100
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


def gain(one: pd.Series[float], other: pd.Series[float]) -> tuple[float, float, float]:
    """Return the mean of the differences by seed, the half-width of its 95 % interval, and p of the paired t-test."""
    gaps = (one - other).dropna()
    half_width = float(stats.t.ppf(0.975, len(gaps) - 1) * gaps.sem())
    return float(gaps.mean()), half_width, float(stats.ttest_1samp(gaps, 0).pvalue)


FASHION_MNIST = Column("fashion_mnist_long")


def gains(column: Column, rounds: int | None = None) -> pd.DataFrame:
    """Return ``p``, corrected for the three, and ``text`` of the gain over none of each norm."""
    of = column.by_seed(rounds) / 100
    found = judge([(of[f"fedavg {norm}"] - of["fedavg none"]).dropna() for norm in THREE])
    return pd.DataFrame({"p": [one.p for one in found], "text": [one.text for one in found]}, THREE)
