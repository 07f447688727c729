"""Numbers of rows for the sentences of claims: statistics of expressions over the columns of a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
