"""One class a client on finer learning rates, read after any number of rounds: ``results/one_class.parquet``."""

from __future__ import annotations

from functools import cache

import pandas as pd
from scipy import stats

from tests.audit import after
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


def read(setting: Setting, rounds: int) -> pd.DataFrame:
    """Return the runs of a setting after some rounds, as ``after.read`` does."""
    dataset, steps = setting
    return after.read("one_class", rounds)[lambda runs: (runs.dataset == dataset) & (runs["E"] == steps)]


@cache
def chosen(setting: Setting, rounds: int) -> pd.DataFrame:
    """Return the runs of each norm at its best learning rate."""
    return after.best(read(setting, rounds), ["norm"])


def values(setting: Setting, rounds: int) -> pd.DataFrame:
    """Return the numbers of each norm, as ``tables.values`` does."""
    return summarized(chosen(setting, rounds), "norm")


def gain(setting: Setting, rounds: int, norm: str, of: str = "value") -> tuple[float, float]:
    """Return the mean gain over no normalization in points, paired by seed, and the half-width of its 95 % interval."""
    by_seed = chosen(setting, rounds).pivot(index="seed", columns="norm", values=of)
    return after.mean_gain(100 * (by_seed[norm] - by_seed["none"]).dropna())


def lead(norm: str, rounds: int, against: str = "none", of: str = "value") -> pd.Series[float]:
    """Return the lead of a norm on Fashion-MNIST over another one in points by seed."""
    by_seed = chosen(FASHION_MNIST, rounds).pivot(index="seed", columns="norm", values=of)
    return 100 * (by_seed[norm] - by_seed[against])


def shrinkage(norm: str, first: int, second: int, of: str = "value") -> float:
    """Return the p-value of a change of a norm's lead over none on Fashion-MNIST, paired by seed."""
    return float(stats.ttest_1samp(lead(norm, second, of=of) - lead(norm, first, of=of), 0).pvalue)


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
    return after.entry(gain(setting, rounds, norm), gain(setting, rounds, norm, "last"))
