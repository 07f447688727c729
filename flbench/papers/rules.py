"""The rules by which claims are judged, each on the rows of one setting.

``tests/papers/test_error_rates.py`` has their error rates, by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flbench.papers.evidence import Outcome, by, evaluated, exponent_text, fit_exponent, three_digits
from flbench.report.stats import LEVEL, summarize

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finding:
    """What a rule says of a setting, and numbers for its sentence."""

    outcome: Outcome
    numbers: Mapping[str, str]


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of rules that must all hold: the worst; open without any."""
    return min(outcomes, key=(False, None, "in part", True).index, default=None)


def enough(rows: pd.DataFrame, *, sizes: str, each: int, fewest: int) -> tuple[pd.DataFrame, str]:
    """Return the rows of the sizes with ``each`` draws or more, and what lacks if these are fewer than ``fewest``."""
    full = rows[rows.groupby(sizes)[sizes].transform("size") >= each]
    found = full[sizes].nunique()
    lack = f"{found} {sizes}s with {each} draws or more; a verdict needs {fewest} of them"
    return full, lack if found < fewest else ""


def inside(low: float | None, high: float | None, least: float = -math.inf, most: float = math.inf) -> bool | None:
    """Judge an interval: within ``least`` and ``most``, outside, or across one of them; open without an interval."""
    if low is None or high is None:
        return None
    if least <= low and high <= most:
        return True
    return False if high < least or low > most else None


def exponent(rows: pd.DataFrame, *, of: str, over: str, least: float = -math.inf, most: float = math.inf) -> Finding:
    """Return whether the interval of the exponent of a column over another is within ``least`` and ``most``."""
    found = fit_exponent({size: own[of].tolist() for size, own in by(rows, over)})
    outcome = inside(found.low, found.high, least, most) if found else None
    return Finding(
        outcome, {"exponent": exponent_text(found), "draws": str(len(rows)), "largest": str(rows[over].max())}
    )


def keeps_growing(rows: pd.DataFrame, *, of: str, over: str, least: float) -> Finding:
    """Return whether the exponent over the two largest sizes is not shown to be below ``least``."""
    values = {size: own[of].tolist() for size, own in by(rows, over)}
    last = sorted(values)[-2:]
    found = fit_exponent({size: values[size] for size in last})
    is_below = found is not None and found.high is not None and found.high < least
    return Finding(not is_below, {"last": f"{exponent_text(found)} from {last[0]} to {last[-1]}"})


def all_units(rows: pd.DataFrame, *, unit: Sequence[str], every: str, but: str = "") -> Finding:
    """Return whether all units, some of them or none have a property in every row.

    ``but`` is a sentence about the units that do not, with the columns of ``rows`` in braces.
    """
    has = rows.assign(has=evaluated(rows, every)).groupby(list(unit), observed=True).has.transform("all")
    units = rows.assign(has=has).drop_duplicates(list(unit))
    fallen = units[~units.has]
    prefix, brace, name = but.partition("{")
    names = " and ".join((brace + name).format_map(one) for one in fallen.to_dict("records"))
    numbers = {"units": str(len(units)), "but": names and prefix + names}
    return Finding(True if fallen.empty else "in part" if len(fallen) < len(units) else False, numbers)


def never(rows: pd.DataFrame, *, has: str) -> Finding:
    """Return whether no row has a property."""
    found = evaluated(rows, has).sum()
    return Finding(bool(found == 0), {"never": f"{found} of {len(rows)}"})


def mean_near(rows: pd.DataFrame, *, of: str, near: str, tolerance: float, at: str) -> Finding:
    """Return whether a mean at the largest ``at`` is, with its interval, within a relative tolerance of ``near``."""
    widest = rows[rows[at] == rows[at].max()]
    known, theory = summarize(widest[of].tolist()), float(widest[near].iloc[0])
    assert known is not None
    reach = known.half_width or 0.0
    low, high = ((known.mean + sign * reach) / theory - 1 for sign in (-1, 1))
    sd = "" if known.sd is None else f"sd {three_digits(known.sd)}, "
    mean = f"{three_digits(known.mean)} ({sd}n={known.n})"
    return Finding(inside(low, high, -tolerance, tolerance), {"mean": mean, "near": three_digits(theory)})


def within(rows: pd.DataFrame, *, of: str, low: str, high: str, least: float) -> Finding:
    """Return whether a share of the rows or more is between two columns; open where a row has neither bound."""
    kept = ((rows[low] <= rows[of]) | rows[low].isna()) & ((rows[of] <= rows[high]) | rows[high].isna())
    is_bounded = rows[low].notna() | rows[high].notna()
    admitted = int((kept & is_bounded).sum())
    outcome = admitted / len(rows) >= least if is_bounded.all() else None
    return Finding(outcome, {"within": f"{admitted} of {len(rows)}"})


def units(
    rows: pd.DataFrame,
    *,
    unit: Sequence[str],
    where: str,
    fewest: int,
    every: str = "",
    some: str = "",
    least: float = 0.0,
    most: float = 1.0,
    above: float = -1.0,
    name: str = "units",
) -> Finding:
    """Return whether a share of units is within bounds: those of which every row, or some row, has a property.

    Args:
        rows: of the setting.
        unit: the columns that the rows of a unit share.
        where: the rows that count.
        fewest: units that a verdict needs; it is open with fewer.
        every: the property, an expression, that every row must have.
        some: the property that some row must have.
        least: the least share.
        most: the largest share.
        above: a share that is too small.
        name: of the number of such units.
    """
    counted = rows.query(where)
    flags = counted.assign(has=evaluated(counted, every or some)).groupby(list(unit)).has
    found = flags.all() if every else flags.any()
    numbers = {name: f"{found.sum()} of {len(found)}"}
    if len(found) < fewest:
        return Finding(None, numbers)
    share = found.mean()
    return Finding(bool(least <= share <= most and share > above), numbers)


def apart(rows: pd.DataFrame, *, of: str, higher: str, lower: str, at: str) -> Finding | None:
    """Return whether all values of some rows are above all values of others, at each ``at``: the exact rank test.

    If both were alike, n of k + n values would be the highest in one of comb(k + n, n) cases at each. A median that is
    not higher refutes the claim. None where either has no row.
    """
    sides = [rows.query(side) for side in (higher, lower)]
    if any(side.empty for side in sides):
        return None
    high_of, low_of = (dict(iter(side.dropna(subset=of).groupby(at)[of])) for side in sides)
    pairs: dict[Any, Any] = {size: (high_of[size], low_of[size]) for size in high_of if size in low_of}
    ratios = {size: high.median() / low.median() for size, (high, low) in pairs.items()}
    chance = math.prod(1 / math.comb(len(high) + len(low), len(low)) for high, low in pairs.values())
    numbers = {"ratios": ", ".join(f"{three_digits(ratio)} at {size}" for size, ratio in ratios.items()) or "none"}
    if any(ratio <= 1 for ratio in ratios.values()):
        return Finding(False, numbers)
    are_apart = bool(pairs) and all(high.min() > low.max() for high, low in pairs.values())
    return Finding(True if are_apart and chance < LEVEL else None, numbers)


RULES: Mapping[str, Callable[..., Finding | None]] = {
    rule.__name__: rule for rule in (exponent, keeps_growing, mean_near, within, units, all_units, never, apart)
}
