"""Values of rows and columns: means, intervals, and which are shown to be better than the first row."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import FEWEST, LEVEL, comparisons, holm
from tests.audit.runs import COLUMNS, IMAGES, ROW, Place, chosen

#: A column: a sweep, and a place on its axes.
At = tuple[str, Place]

#: A row: method, norm and head.
Row = tuple[str, str, str]

#: The row with which the others are compared.
BASELINE: Row = ("fedavg", "none", "linear")

#: Coverage of intervals.
CONFIDENCE = 0.95


def values(at: At) -> pd.DataFrame:
    """Return the mean, the half-width of its interval over seeds and test images, the ``last`` one, and n of each row.

    All but n are in percent.
    """
    return summarized(_of_column(at), ROW)


def summarized(runs: pd.DataFrame, by: str | list[str]) -> pd.DataFrame:
    """Return the numbers of ``values`` for groups of runs on one data set."""
    groups, upper = runs.groupby(by), (1 + CONFIDENCE) / 2
    found = groups.value.agg(["mean", "std", "count"])
    over_seeds = stats.t.ppf(upper, found["count"] - 1) * found["std"] / np.sqrt(found["count"])
    images = IMAGES[runs.dataset.iloc[0]]
    over_images = stats.norm.ppf(upper) * np.sqrt(found["mean"] * (1 - found["mean"]) / images)
    half_width = np.hypot(over_seeds, over_images).where(found["count"] >= FEWEST)
    numbers = {"mean": found["mean"], "half_width": half_width, "last": groups["last"].mean()}
    return pd.DataFrame({**{name: 100 * of for name, of in numbers.items()}, "n": found["count"]})


def level(at: At, row: Row) -> str:
    """Return a mean over evaluations with the last one, as pages have it in sentences: ``88.4 % (last 92.4)``."""
    of_row = values(at).loc[row]
    return f"{of_row['mean']:.1f} % (last {of_row['last']:.1f})"


def better(at: At) -> set[Row]:
    """Return the rows that are shown to be better than the baseline in a column.

    By the planned comparison of these two cells where there is one, else by a paired t-test with Holm's correction over
    the other rows of the column.
    """
    by_seed = _of_column(at).set_index([*ROW, "seed"]).value.unstack("seed")
    gains = by_seed.drop(BASELINE) - by_seed.xs(BASELINE)
    if gains.shape[1] < FEWEST:
        return set()
    p = holm(pd.Series(stats.ttest_1samp(gains, 0, axis=1).pvalue, gains.index))
    shown = (p < LEVEL) & (gains.mean(axis=1) > 0)
    for row, verdict in _planned(at).items():
        shown[row] = verdict.startswith("more")
    return set(shown.index[shown])


def in_order(columns: list[At]) -> list[Row]:
    """Return all rows of some columns in the order of the page.

    First the baseline, then the rows of planned comparisons with it, then the others: those with values in most
    columns, and of these the best by mean rank, as a share of the column's rows.
    """
    ranks = pd.DataFrame({at: values(at)["mean"].rank(ascending=False, pct=True) for at in columns})
    named = {row for at in columns for row in _planned(at)}
    gaps, mean = ranks.isna().sum(axis=1), ranks.mean(axis=1)
    return sorted(ranks.index, key=lambda row: (row != BASELINE, row not in named, gaps[row], mean[row]))


def _of_column(at: At) -> pd.DataFrame:
    """Return the chosen runs of a column."""
    sweep, place = at
    runs = chosen(sweep)
    return runs[(runs[COLUMNS[sweep]] == list(place)).all(axis=1)]


def _planned(at: At) -> dict[Row, str]:
    """Return the verdicts on the planned comparisons of a row with the baseline."""
    sweep, place = at
    baseline = dict(zip(ROW, BASELINE, strict=True))
    return {
        (row["method"], row["norm"], row["head"]): one.verdict
        for one in comparisons(sweep)
        if one.column == place and one.against == baseline[one.field]
        for row in [baseline | {one.field: one.value}]
    }
