"""The rules by which claims are judged, each on the rows of one setting, and the statistics of their sentences.

``tests/papers/test_error_rates.py`` has the rules' error rates, by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flbench.papers.evidence import (
    Outcome,
    by,
    evaluated,
    exponent_text,
    fit_exponent,
    mean_text,
    median_text,
    one_decimal,
    range_text,
    three_digits,
    two_decimals,
)
from flbench.report.stats import LEVEL, summarize

if TYPE_CHECKING:
    import pandas as pd

    Series = pd.Series[Any]


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
    """Hold unless the exponent over the two largest sizes is shown to be below ``least``."""
    values = {size: own[of].tolist() for size, own in by(rows, over)}
    last = sorted(values)[-2:]
    found = fit_exponent({size: values[size] for size in last})
    shown_below = found is not None and found.high is not None and found.high < least
    return Finding(not shown_below, {"last": f"{exponent_text(found)} from {last[0]} to {last[-1]}"})


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

#: A number as text.
Form = Callable[[float], str]

_FORMS: Mapping[str, Form] = {form.__name__: form for form in (one_decimal, two_decimals, three_digits)}


def statistic(rows: pd.DataFrame, spec: Mapping[str, Any]) -> str:
    """Return a statistic as text.

    Args:
        rows: of a setting.
        spec: one of the statistics below with its expression (``DataFrame.eval``), and optionally ``where``, the rows
            that count; ``at``, a column of which only the largest value counts; ``by``, a column for each of whose
            values the statistic is listed; ``unit``, the columns that the rows of a unit share; ``form``, that of a
            number (three digits).
    """
    if "where" in spec:
        rows = rows.query(spec["where"])
    if "at" in spec:
        rows = rows[rows[spec["at"]] == rows[spec["at"]].max()]
    (name,) = spec.keys() & (_OF_VALUES.keys() | _OF_UNITS.keys())
    values, form = evaluated(rows, spec[name]).dropna(), _FORMS[spec.get("form", "three_digits")]

    def text(own: Series) -> str:
        if name in _OF_VALUES:
            return _OF_VALUES[name](own, form)
        by_unit = own.groupby([rows[column] for column in spec["unit"]])
        return _OF_UNITS[name](by_unit.all(), by_unit.any())

    if "by" not in spec:
        return text(values)
    return ", ".join(f"{text(own)} at {size}" for size, own in values.groupby(rows[spec["by"]])) or "none"


_OF_VALUES: Mapping[str, Callable[[Series, Form], str]] = {
    "mean": lambda values, form: form(values.mean()),
    "mean_ci": lambda values, _: mean_text(values.tolist()),
    "middle": lambda values, form: form(values.median()),
    "median": lambda values, _: median_text(values.tolist()),  # with range and number
    "least": lambda values, form: form(values.min()),
    "most": lambda values, form: form(values.max()),
    "range": lambda values, form: range_text(values.tolist(), form),
    "values": lambda values, _: ", ".join(str(value) for value in sorted(values.unique())),
    "number": lambda values, _: str(len(values)),
    "count": lambda flags, _: f"{flags.sum()} of {len(flags)}",
}

#: Of the units of which every row has a property, and of those of which some row has it.
_OF_UNITS: Mapping[str, Callable[[Series, Series], str]] = {
    "some": lambda every, some: f"{some.sum()} of {len(some)}",
    "units": lambda every, some: f"{every.sum()} ({some.sum()}) of {len(every)}",
}
