"""Numbers of rows for the sentences of claims: statistics of expressions over the columns of a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flbench.papers.evidence import (
    evaluated,
    mean_text,
    median_text,
    one_decimal,
    range_text,
    three_digits,
    two_decimals,
)

if TYPE_CHECKING:
    import pandas as pd

    Series = pd.Series[Any]

#: Forms of a number.
_FORMS = {"one_decimal": one_decimal, "two_decimals": two_decimals, "three_digits": three_digits}


def statistic(rows: pd.DataFrame, spec: Mapping[str, Any]) -> str:
    """Return a statistic as text.

    Args:
        rows: of a setting.
        spec: one of the statistics below with its expression (``DataFrame.eval``), and optionally ``where``, the rows
            that count; ``at``, a column of which only the largest value counts; ``by``, a column for each of whose
            values the statistic is listed; ``unit``, the columns that the rows of a unit share; ``form``, that of a
            number.
    """
    if "where" in spec:
        rows = rows.query(spec["where"])
    if "at" in spec:
        rows = rows[rows[spec["at"]] == rows[spec["at"]].max()]
    (name,) = spec.keys() & _STATISTICS.keys()
    values = evaluated(rows, spec[name]).dropna()

    def text(own: Series) -> str:
        return _STATISTICS[name](own, [rows[column][own.index] for column in spec.get("unit", ())], spec.get("form"))

    if "by" not in spec:
        return text(values)
    return ", ".join(f"{text(own)} at {size}" for size, own in values.groupby(rows[spec["by"]])) or "none"


def _mean(values: Series, unit: Sequence[Series], form: str | None) -> str:
    return _FORMS[form or "three_digits"](values.mean())


def _middle(values: Series, unit: Sequence[Series], form: str | None) -> str:
    return _FORMS[form or "three_digits"](values.median())


def _some(flags: Series, unit: Sequence[Series], form: str | None) -> str:
    """The units of which some row has it."""
    some = flags.groupby(list(unit)).any()
    return f"{some.sum()} of {len(some)}"


def _units(flags: Series, unit: Sequence[Series], form: str | None) -> str:
    """The units of which every row has it, and in brackets those of which some row has it."""
    by_unit = flags.groupby(list(unit))
    return f"{by_unit.all().sum()} ({by_unit.any().sum()}) of {by_unit.ngroups}"


_STATISTICS: Mapping[str, Callable[[Series, Sequence[Series], str | None], str]] = {
    "mean": _mean,
    "middle": _middle,  # the median alone
    "median": lambda values, *_: median_text(values),
    "mean_ci": lambda values, *_: mean_text(values.tolist()),
    "least": lambda values, _, form: _FORMS[form or "three_digits"](values.min()),
    "most": lambda values, _, form: _FORMS[form or "three_digits"](values.max()),
    "range": lambda values, _, form: range_text(values.tolist(), _FORMS[form or "three_digits"]),
    "values": lambda values, *_: ", ".join(str(value) for value in sorted(values.unique())),
    "number": lambda values, *_: str(len(values)),
    "count": lambda flags, *_: f"{flags.sum()} of {len(flags)}",
    "some": _some,
    "units": _units,
}
