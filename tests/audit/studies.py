"""What the audits of studies share: exported runs, verdicts of several settings, and numbers as the pages have them.

The rules are those of ``docs/why.md`` and ``docs/statistics.md``, written down a second time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.runs import exported

#: By a claim's first words: its verdict, and the numbers beside it as the page has them.
Claims = dict[str, tuple[str, str]]


def results(file: str, kind: str) -> pd.DataFrame:
    """Return a row a stored result of one kind: the fields of its experiment, how it ended, and its records."""
    found = []
    for row in exported(file).itertuples():
        if row.experiment["kind"] == kind:
            records = [json.loads(line) for line in row.metrics]
            ended = {"status": row.result["status"], "length": row.result["rounds"]}
            found.append({**row.experiment, **ended, "run_id": row.run_id, "records": records})
    return pd.DataFrame(found)


def verdict_of(outcomes: Iterable[str]) -> str:
    """Return the one verdict of all settings; where they differ, whether it holds in some or in none."""
    verdicts = set(outcomes)
    if len(verdicts) == 1:
        return verdicts.pop()
    return "in part" if verdicts & {"holds", "in part"} else "does not hold"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Return the slope of the values' logarithms over those of the sizes, with its 95 % interval.

    Spreads differ between sizes: the variance is that of the weighted sum of means, its degrees of freedom are Welch's.
    """
    x, y = np.log(sizes), pd.Series(np.log(values)).groupby(np.asarray(sizes))
    weights = pd.Series((x - np.mean(x)) / np.sum((x - np.mean(x)) ** 2)).groupby(np.asarray(sizes)).sum()
    slope, parts = float(weights @ y.mean()), weights**2 * y.var() / y.size()
    freedom = parts.sum() ** 2 / (parts**2 / (y.size() - 1)).sum()
    reach = stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum())
    return slope, slope - reach, slope + reach


def exponent_text(found: tuple[float, float, float]) -> str:
    """``0.52 [0.51, 0.53]``, without negative zeros."""
    slope, low, high = (f"{np.round(one, 2) + 0.0:.2f}" for one in found)
    return f"{slope} [{low}, {high}]"


def half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % t-interval of the mean."""
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def mean_text(values: Sequence[float], digits: int = 2) -> str:
    """``1.04 ± 0.07``, of three values or more."""
    return f"{np.mean(values):.{digits}f} ± {half_width(values):.{digits}f}"


def short(value: float) -> str:
    """Three significant digits, or all before the decimal point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def span(values: Sequence[float]) -> str:
    """``8.1 to 9.4``, or one number where both ends have the same digits."""
    ends = [short(min(values)), short(max(values))]
    return " to ".join(dict.fromkeys(ends))


def median_text(values: Sequence[float]) -> str:
    """``0.158 (0.158 to 0.232, n=12)``."""
    return f"{short(float(np.median(values)))} ({span(values)}, n={len(values)})"
