"""One class a client on finer learning rates, read after any number of rounds: ``results/one_class.parquet``."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import LEVEL
from tests.audit.runs import TAIL, recorded
from tests.audit.tables import summarized

#: A data set and the local steps a round.
Setting = tuple[str, int]

DIGITS: Setting = ("digits", 10)
TWENTY_STEPS: Setting = ("digits", 20)
FASHION_MNIST: Setting = ("fashion_mnist", 10)

#: The rows of the table, with the rounds after which it reads the runs.
READ: dict[str, tuple[Setting, tuple[int, ...]]] = {
    "digits, E = 10": (DIGITS, (100, 200, 300, 500, 1000)),
    "digits, E = 20": (TWENTY_STEPS, (100, 200, 300)),
    "Fashion-MNIST, E = 10": (FASHION_MNIST, (100, 200, 300, 400)),
}

#: The columns of the table, with their heads.
NORMS = {
    "scale": "constant",
    "fn": "feature norm",
    "ln": "layer norm",
    "gn": "group norm",
    "bn": "batch norm",
}


@cache
def read(setting: Setting, rounds: int) -> pd.DataFrame:
    """Return the runs after some rounds: ``value``, the mean of the last five accuracies, ``last``, and ``score``.

    The score, which chooses learning rates, is the mean of the last five accuracies on held-out training data. A run
    that diverged before has none of the three.
    """
    every, found = recorded("one_class"), []
    for run in every[(every.dataset == setting[0]) & (every["E"] == setting[1])].itertuples():
        tail = [one for one in run.records if 0 < one["round"] <= rounds][-TAIL["one_class"] :]
        numbers = (np.nan,) * 3
        if tail and tail[-1]["round"] == rounds:
            accuracies = [one["acc"] for one in tail]
            numbers = (np.mean(accuracies), accuracies[-1], np.mean([one["val_acc"] for one in tail]))
        found.append((run.dataset, run.norm, run.lr, run.seed, *numbers))
    return pd.DataFrame(found, columns=["dataset", "norm", "lr", "seed", "value", "last", "score"])


@cache
def chosen(setting: Setting, rounds: int) -> pd.DataFrame:
    """Return the runs of each row at its learning rate with the best mean score, among those that kept all seeds."""
    runs = read(setting, rounds)
    rates = runs.groupby(["norm", "lr"]).agg(
        score=("score", "mean"), kept=("value", "count"), seeds=("seed", "nunique")
    )
    whole = rates[rates.kept == rates.seeds].reset_index()
    return runs.merge(whole.loc[whole.groupby("norm").score.idxmax(), ["norm", "lr"]])


def values(setting: Setting, rounds: int) -> pd.DataFrame:
    """Return the numbers of each norm, as ``tables.values`` does."""
    return summarized(chosen(setting, rounds), "norm")


def gain(setting: Setting, rounds: int, norm: str, of: str = "value") -> tuple[float, float]:
    """Return the mean gain over no normalization in points, paired by seed, and the half-width of its 95 % interval."""
    by_seed = chosen(setting, rounds).pivot(index="seed", columns="norm", values=of)
    gains = 100 * (by_seed[norm] - by_seed["none"]).dropna()
    interval = stats.ttest_1samp(gains, 0).confidence_interval(1 - LEVEL)
    return float(gains.mean()), float(np.ptp(interval)) / 2


def table() -> list[list[str]]:
    """Return the gains after some rounds, by the mean of the last five evaluations and by the last one."""
    rows = [["data, local steps", "rounds", "none", *NORMS.values()]]
    for name, (setting, lengths) in READ.items():
        for rounds in lengths:
            of = values(setting, rounds)
            none = f"{of['mean']['none']:.1f} % (last {of['last']['none']:.1f})"
            rows.append([name, f"{rounds:,}", none, *(_entry(setting, rounds, norm) for norm in NORMS)])
    return rows


def _entry(setting: Setting, rounds: int, norm: str) -> str:
    if norm not in set(chosen(setting, rounds).norm):
        return "–"
    (mean, half), (last, half_of_last) = (gain(setting, rounds, norm, of) for of in ("value", "last"))
    return f"{mean:+.1f} ± {half:.1f} (last {last:+.1f} ± {half_of_last:.1f})"
