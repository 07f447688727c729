"""Exponents of power laws, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Exponent:
    """The slope of log y over log x, and its 95 % Student-t interval (None of two points)."""

    value: float
    low: float | None
    high: float | None


def exponent(x: Sequence[float], y: Sequence[float]) -> Exponent:
    """Return b of y = a x^b, fitted by least squares of the logarithms.

    The convergence rate q of the backward order parameters (Karakida et al. 2019, section 3.2) is minus the exponent of
    the deviations |sum_i delta_i(s) delta_i(t) - q~_st| over the width.

    Raises:
        ValueError: fewer than two different x, or a number that is not positive.

    >>> exponent([1, 2, 4], [3, 12, 48]).value
    2.0
    """
    if len(set(x)) < 2 or min(*x, *y) <= 0:
        raise ValueError("an exponent needs positive numbers at two different x or more")
    fit = stats.linregress(np.log(x), np.log(y))
    if len(x) < 3:
        return Exponent(float(fit.slope), None, None)
    reach = float(fit.stderr * stats.t.ppf((1 + 0.95) / 2, len(x) - 2))
    return Exponent(float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach)
