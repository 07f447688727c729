"""Sums of numbers with the same bits on every version of Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add


def sum_in_order(values: Iterable[float]) -> float:
    """Return the sum of numbers, added from the first to the last in double precision.

    ``sum`` does this in Python 3.11 alone: since 3.12 it compensates for rounding, which changes the last bit of a
    run's numbers. ``math.fsum`` and ``statistics.fmean`` round once on every version, and suit reports.

    >>> sum_in_order([0.1] * 10), sum_in_order([])
    (0.9999999999999999, 0.0)
    """
    return reduce(add, values, 0.0)
