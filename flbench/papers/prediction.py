"""What our runs predict for a published accuracy: the spread of single runs, and an interval for another laboratory's.

The unit is a run with its own seed. If ours and the published runs differ by their seeds alone, the difference of the
two means has the variance s^2 (1 / n + 1 / n_published), and Student's t with the degrees of freedom of s gives its
95 % interval. Few cells have many seeds, so s is pooled over cells. Accuracies near 0 and 1 spread less than those
between; on the logit scale the spread is nearly the same, and s is pooled there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from flbench.report.stats import CONFIDENCE

#: Logits of 0 and 1 are infinite: accuracies are at least this far from both.
EDGE = 1e-3


class Seeds(NamedTuple):
    """Mean and standard deviation (ddof 1) of accuracies, as fractions, over ``n`` seeds."""

    mean: float
    sd: float
    n: int


class Spread(NamedTuple):
    """The standard deviation of single runs' logits, pooled over ``cells``, with its degrees of freedom."""

    sd: float
    df: int
    cells: int


class Prediction(NamedTuple):
    """The 95 % interval of a published accuracy, a fraction; ``p`` of the published one, two-sided, not corrected."""

    low: float
    high: float
    p: float


def pool(cells: Iterable[Seeds]) -> Spread | None:
    """Return the spread within cells, each weighted by its degrees of freedom; None where no repetition differs.

    Cells at chance must be left out: a network that predicts one class has the same accuracy with every seed.
    """
    known = [cell for cell in cells if cell.n > 1]
    df = sum(cell.n - 1 for cell in known)
    squares = math.fsum((cell.n - 1) * (cell.sd / _slope(cell.mean)) ** 2 for cell in known)
    return Spread(math.sqrt(squares / df), df, len(known)) if squares else None


def predict(mean: float, n: int, spread: Spread, *, published: float, seeds: int) -> Prediction:
    """Return the interval of a published accuracy from ours, and the p-value of the published one.

    Args:
        mean: ours, a fraction, over ``n`` seeds.
        n: our seeds.
        spread: of single runs.
        published: the published accuracy, a fraction, over ``seeds`` seeds.
        seeds: of the published one.
    """
    from scipy.special import expit, logit, stdtr, stdtrit

    error = spread.sd * math.sqrt(1 / n + 1 / seeds)
    centre, other = logit(_inside(mean)), logit(_inside(published))
    half_width = stdtrit(spread.df, (1 + CONFIDENCE) / 2) * error
    p = 2 * float(stdtr(spread.df, -abs(other - centre) / error))
    return Prediction(float(expit(centre - half_width)), float(expit(centre + half_width)), p)


def _inside(accuracy: float) -> float:
    return min(max(accuracy, EDGE), 1 - EDGE)


def _slope(accuracy: float) -> float:
    """The derivative of an accuracy by its logit."""
    return _inside(accuracy) * (1 - _inside(accuracy))
