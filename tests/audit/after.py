"""Runs read after any number of their rounds: their values, the best learning rates, and gains paired by seed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import LEVEL
from tests.audit.runs import TAIL, recorded


@cache
def read(sweep: str, rounds: int) -> pd.DataFrame:
    """Return the runs after some rounds: ``value``, the mean of the last five accuracies, ``last``, and ``score``.

    The score, which chooses learning rates, is the mean of the last five accuracies on held-out training data. A run
    that diverged before has none of the three.
    """
    runs = recorded(sweep)
    numbers = [_numbers(records, rounds, TAIL[sweep]) for records in runs.records]
    return runs.drop(columns="records").assign(**pd.DataFrame(numbers, runs.index, ["value", "last", "score"]))


def _numbers(records: list[dict[str, Any]], rounds: int, tail: int) -> tuple[float, float, float]:
    evaluated = [one for one in records if 0 < one["round"] <= rounds][-tail:]
    if not evaluated or evaluated[-1]["round"] != rounds:
        return np.nan, np.nan, np.nan
    value, score = (float(np.mean([one[name] for one in evaluated])) for name in ("acc", "val_acc"))
    return value, evaluated[-1]["acc"], score


def best(runs: pd.DataFrame, row: list[str]) -> pd.DataFrame:
    """Return the runs of each row at its learning rate with the best mean score, among those that kept all seeds."""
    numbers = {"score": ("score", "mean"), "kept": ("value", "count"), "seeds": ("seed", "nunique")}
    rates = runs.groupby([*row, "lr"]).agg(**numbers)
    whole = rates[rates.kept == rates.seeds].reset_index()
    return runs.merge(whole.loc[whole.groupby(row).score.idxmax(), [*row, "lr"]])


def mean_gain(gains: pd.Series[float]) -> tuple[float, float]:
    """Return the mean of gains, one of each seed, and the half-width of its 95 % interval."""
    interval = stats.ttest_1samp(gains, 0).confidence_interval(1 - LEVEL)
    return float(gains.mean()), float(np.ptp(interval)) / 2


def entry(of_value: tuple[float, float], of_last: tuple[float, float]) -> str:
    """Return two mean gains as tables have them: ``+2.8 ± 1.2 (last +1.7 ± 1.1)``."""
    (mean, half), (last, half_of_last) = of_value, of_last
    return f"{mean:+.1f} ± {half:.1f} (last {last:+.1f} ± {half_of_last:.1f})"
