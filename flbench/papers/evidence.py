"""What the claims of all papers share: a verdict from several settings, fitted exponents, and numbers as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flbench.report.blocks import Entry
from flbench.report.claims import Verdict
from flbench.report.stats import LEVEL, Difference, summarize, welch_half_width

if TYPE_CHECKING:
    import pandas as pd

#: What one setting says of a claim. True, False and None: it holds, it does not hold, the runs cannot decide.
Outcome = Verdict | bool | None

_VERDICTS: Mapping[bool | None, Verdict] = {True: "holds", False: "does not hold", None: "inconclusive"}


def combined(outcomes: Iterable[Outcome]) -> Verdict:
    """Return the verdict on a claim from its outcome in each setting.

    A claim that holds in some settings alone holds in part; one that is refuted in some and open in the others does
    not hold; one without settings was not run.
    """
    verdicts = {outcome if isinstance(outcome, str) else _VERDICTS[outcome] for outcome in outcomes}
    if len(verdicts) < 2:
        return verdicts.pop() if verdicts else "not run"
    return "in part" if verdicts & {"holds", "in part"} else "does not hold"


def by(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the rows that agree in columns, with what they agree in: a value, or a tuple of several."""
    yield from frame.groupby(columns[0] if len(columns) == 1 else list(columns), observed=True)


def evaluated(frame: pd.DataFrame, expression: str) -> pd.Series[Any]:
    """Return the value of an expression over the columns of each row."""
    return cast("pd.Series[Any]", frame.eval(expression))


@dataclass(frozen=True)
class Exponent:
    """The slope of log y over log x by least squares, and its 95 % interval; None where a width has a single value."""

    value: float
    low: float | None
    high: float | None


def fit_exponent(by_width: Mapping[int, Iterable[float]], fewest: int = 2) -> Exponent | None:
    """Return the exponent of positive values over the width, each value a point; None below ``fewest`` widths.

    The unit is a draw. The slope is a weighted sum of the widths' mean logarithms, so its interval is Welch's, of each
    width's own spread. The usual one assumes equal spreads and a straight line; lambda_max scatters seven times as much
    at the least width as at the largest, and that interval covers the slope in 87 to 95 % of cases.
    """
    logs = {math.log(width): [math.log(value) for value in values if value > 0] for width, values in by_width.items()}
    points = [(x, values) for x, values in logs.items() if values]
    if len(points) < fewest:
        return None
    centre = math.fsum(x * len(values) for x, values in points) / sum(len(values) for _, values in points)
    scale = math.fsum(len(values) * (x - centre) ** 2 for x, values in points)
    weights = [len(values) * (x - centre) / scale for x, values in points]
    slope = math.fsum(weight * statistics.fmean(values) for weight, (_, values) in zip(weights, points, strict=True))
    if any(len(values) < 2 for _, values in points):
        return Exponent(slope, None, None)
    half_width = welch_half_width(
        [
            (weight**2 * statistics.variance(values) / len(values), len(values) - 1)
            for weight, (_, values) in zip(weights, points, strict=True)
        ]
    )
    return Exponent(slope, slope - half_width, slope + half_width)


def exponent_text(found: Exponent | None) -> str:
    """``0.97 [0.95, 0.99]``; a dash for none."""
    if found is None:
        return "–"
    value, (low, high) = two_decimals(found.value), (found.low, found.high)
    return value if low is None or high is None else f"{value} [{two_decimals(low)}, {two_decimals(high)}]"


def number_entry(value: float | None, text: Callable[[float], str] = "{:.3g}".format) -> Entry:
    """A number of a table, which is sorted by its value; a dash for none."""
    return Entry("–") if value is None else Entry(text(value), order=value)


def one_decimal(value: float) -> str:
    """``0.5``; never ``-0.0``."""
    return f"{value:z.1f}"


def two_decimals(value: float) -> str:
    """``0.52``; never ``-0.00``."""
    return f"{value:z.2f}"


def three_digits(value: float) -> str:
    """Three significant digits, or all those before the decimal point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def range_text(values: Sequence[float], form: Callable[[float], str] = three_digits) -> str:
    """``8.1 to 9.4``, or a single number where both ends read alike; a dash for none."""
    if not len(values):
        return "–"
    low, high = map(form, (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def median_text(values: Sequence[float]) -> str:
    """Median, range and number: ``8.47 (7.9 to 8.97, n=100)``; ``none`` for no values."""
    if not len(values):
        return "none"
    return f"{three_digits(statistics.median(values))} ({range_text(values)}, n={len(values)})"


def mean_text(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± half-width of its 95 % interval; the mean alone for fewer than three values; a dash for none."""
    summary = summarize(values)
    if summary is None:
        return "–"
    text = f"{summary.mean:.{digits}f}"
    return text if summary.half_width is None else f"{text} ± {summary.half_width:.{digits}f}"


def percent_text(values: Iterable[float]) -> str:
    """Accuracies in percent: ``91.2 ± 0.5``."""
    return mean_text([100 * value for value in values], 1)


def points_text(found: Difference | None, digits: int = 1) -> str:
    """A difference of accuracies in percentage points: ``+2.1 ± 0.8``; a dash for none."""
    if found is None:
        return "–"
    text = f"{100 * found.mean:+z.{digits}f}"
    return text if found.half_width is None else f"{text} ± {100 * found.half_width:.{digits}f}"


def direction(found: Difference | None) -> int:
    """Return 1 or -1 where the paired test of three seeds or more shows a difference at 5 %, else 0."""
    if found is None or found.half_width is None or found.p is None or found.p >= LEVEL:
        return 0
    return 1 if found.mean > 0 else -1
