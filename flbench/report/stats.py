"""What a leaderboard may say about a handful of seeds.

Mean, sample standard deviation (ddof 1) and the Student-t interval of the mean; one seed has no interval. Paired
differences, corrections for many comparisons and bootstraps across cells belong here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Coverage of every interval that is printed.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """``n`` values in three numbers; ``sd`` and ``half_width`` need two values at least and are None below that."""

    n: int
    mean: float
    sd: float | None
    half_width: float | None


def summarize(values: Sequence[float]) -> Summary | None:
    """Mean, sample standard deviation and half-width of the 95 % t-interval of the mean; None for no values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Summary(n, mean, sd, t_quantile(n - 1) * sd / math.sqrt(n))


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided Student-t quantile: 12.706 for one degree of freedom at 95 %."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + confidence) / 2))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same things (Kendall 1945); None where either has only ties.

    Concordant less discordant pairs, over the geometric mean of the pairs that are not tied in the first and in the
    second ranking.
    """
    pairs = [(i, j) for j in range(len(first)) for i in range(j)]
    signs = [(_sign(first[i] - first[j]), _sign(second[i] - second[j])) for i, j in pairs]
    untied = sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs)
    return sum(a * b for a, b in signs) / math.sqrt(untied) if untied else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
