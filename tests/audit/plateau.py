"""How far and how fast, by rules that share no code with the report; digits to the plateau at refined rates."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.runs import accuracy, federated, recorded

#: The share of the lowest plateau to which rounds are counted, and the least multiple of guessing that counts.
LEVEL, FAILS = 0.95, 0.15


def chosen(partition: str) -> pd.DataFrame:
    """Return the runs of the rate that held-out data choose, with their records, for each norm with a linear head."""
    of = federated("plateau").assign(records=recorded("plateau").query("kind == 'federated'").records.to_numpy())
    of = of.query("partition == @partition and head == 'linear'")
    rates = of.groupby(["norm", "lr"]).score.agg(lambda known: known.mean(skipna=False)).groupby("norm").idxmax()
    return of.set_index(["norm", "lr"]).loc[list(rates)].reset_index()


def level(of: pd.DataFrame) -> float:
    """Return the accuracy to which rounds are counted among runs of one column, a share of the lowest one.

    On digits all rows that do not fail are at a plateau; elsewhere none is shown to be.
    """
    found = of.groupby("norm").value.mean()
    return LEVEL * float(found[found > FAILS].min())


def first_at_level(of: pd.DataFrame) -> pd.Series[float]:
    """Return the rounds of each run to the level of its column; infinite for a run that does not get there."""
    bound = level(of)
    first = [next((one["round"] for one in run if accuracy(one) >= bound), np.inf) for run in of.records]
    return pd.Series(first, of.index, dtype=float)


def rounds_to_level(partition: str) -> pd.DataFrame:
    """Return the rounds to the level on digits, by seed (rows) and norm."""
    of = chosen(partition)
    return of.assign(first=first_at_level(of)).pivot(index="seed", columns="norm", values="first")


def ratio(norm: str, partition: str) -> float:
    """Return the median over seeds of the rounds with a norm, divided by those of none."""
    rounds = rounds_to_level(partition)[[norm, "none"]].dropna()
    return float((rounds[norm] / rounds.none).median())


def p_of_ranks(norm: str, partition: str) -> float:
    """Return p of the exact test that exchanges the two cells within seeds, of ranks over both, not corrected."""
    rounds = rounds_to_level(partition)[[norm, "none"]].dropna()
    ranks = stats.rankdata(rounds.to_numpy()).reshape(rounds.shape)
    gaps = ranks[:, 0] - ranks[:, 1]
    flipped = np.abs(np.array([*product((1, -1), repeat=len(gaps))]) @ gaps)
    return float(np.mean(flipped >= abs(gaps.sum()) - 1e-9))


def is_equivalent(norm: str, partition: str, *, tests: int) -> bool:
    """Return whether norm and none differ by less than a point: two one-sided tests, Bonferroni over ``tests``."""
    of = chosen(partition).pivot(index="seed", columns="norm", values="value")[[norm, "none"]].dropna()
    gaps = of[norm] - of.none
    sides = (
        stats.ttest_1samp(gaps, bound, alternative=side).pvalue for bound, side in ((-0.01, "greater"), (0.01, "less"))
    )
    return max(sides) < 0.05 / tests
