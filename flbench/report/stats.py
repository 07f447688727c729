"""Comparisons of cells: paired tests with Holm's correction, intervals across cells, Kendall's tau.

scipy has no t-test that treats equal differences exactly, and no Holm correction. statsmodels has Holm's correction,
with the same numbers, but the overhead of its calls dominates a report, which corrects thousands of small tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flbench.report.cells import CONFIDENCE, Cell, summarize, with_images

At = TypeVar("At")

#: A difference is significant where its corrected p-value is below this.
LEVEL = 0.05

#: Decimals of a difference between two recorded numbers; the digits below are rounding errors.
_DECIMALS = 12


@dataclass(frozen=True)
class Difference:
    """The mean of ``n`` paired differences; ``half_width`` is None for fewer than ``FEWEST``, ``p`` for one."""

    n: int
    mean: float
    half_width: float | None
    p: float | None

    def is_above(self, bound: float, sign: int = 1) -> bool:
        """Return whether ``sign`` times the mean is shown to exceed a bound, by a one-sided t-test at ``LEVEL``.

        Equal differences without spread are compared with the bound themselves. Never for fewer than ``FEWEST``.
        """
        if self.half_width is None:
            return False
        from scipy.special import stdtrit

        freedom = self.n - 1
        one_sided = float(stdtrit(freedom, 1 - LEVEL) / stdtrit(freedom, (1 + CONFIDENCE) / 2))
        return sign * self.mean - one_sided * self.half_width > bound


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Return values by seed minus others, over their common seeds, with the two-sided paired t-test (Student 1908).

    The t-test is undefined for equal differences, which accuracies on small test sets sometimes have. They get the
    p-value of the exact sign-flip test (Fisher 1935), 2 / 2^n, or 1 where they are zero.

    Returns:
        None where they have no seed in common.
    """
    gaps = [round(value - second[seed], _DECIMALS) for seed, value in sorted(first.items()) if seed in second]
    summary = summarize(gaps)
    if summary is None:
        return None
    if summary.sd is None:
        return Difference(summary.n, summary.mean, None, None)
    if len(set(gaps)) == 1:
        half_width = None if summary.half_width is None else 0.0
        return Difference(summary.n, gaps[0], half_width, 2.0 ** (1 - summary.n) if gaps[0] else 1.0)
    from scipy.special import stdtr

    t = summary.mean / (summary.sd / math.sqrt(summary.n))
    return Difference(summary.n, summary.mean, summary.half_width, 2 * float(stdtr(summary.n - 1, -abs(t))))


def equivalence_p(difference: Difference, margin: float) -> float | None:
    """Return the p-value of the test that a mean is less than ``margin`` away from 0 (TOST, Schuirmann 1987).

    It is the larger one of two one-sided t-tests, that of the nearer bound. Equal differences, for which the t-test is
    undefined, get the p-value of the one-sided sign-flip test, 1 / 2^n, or 1 where they are not within the margin.
    None for fewer than ``FEWEST`` differences.
    """
    found = difference
    if found.half_width is None:
        return None
    room = margin - abs(found.mean)
    if found.half_width == 0:
        return 2.0**-found.n if room > 0 else 1.0
    from scipy.special import stdtr, stdtrit

    error = found.half_width / float(stdtrit(found.n - 1, (1 + CONFIDENCE) / 2))
    return float(stdtr(found.n - 1, -room / error))


def welch_half_width(parts: Sequence[tuple[float, int]]) -> float:
    """Return the half-width of the 95 % interval of a sum or difference of independent estimates.

    Args:
        parts: the variance of each estimate, and its degrees of freedom, by which those of the sum are approximated
            (Satterthwaite 1946, Welch 1947).
    """
    from scipy.special import stdtrit

    total = math.fsum(variance for variance, _ in parts)
    if total == 0:
        return 0.0
    freedom = 1 / math.fsum((variance / total) ** 2 / df for variance, df in parts)
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, in the same order (Holm 1979, controls the family-wise error)."""
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


@dataclass(frozen=True)
class Contrast:
    """A difference; ``p`` is corrected for all that it was tested with (Holm), None for single seeds."""

    difference: Difference
    p: float | None


def contrasts(cells: Mapping[At, Cell], reference: At) -> dict[At, Contrast]:
    """Return every other cell minus the one at ``reference``, over their common seeds."""
    against = cells[reference].by_seed
    return corrected(
        {at: gap for at, cell in cells.items() if at != reference and (gap := paired(cell.by_seed, against))}
    )


def corrected(found: Mapping[At, Difference]) -> dict[At, Contrast]:
    """Return differences with p-values that are corrected for their number."""
    tested = {at: gap.p for at, gap in found.items() if gap.p is not None}
    p_values = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {at: Contrast(gap, p_values.get(at)) for at, gap in found.items()}


def interval_across(cells: Sequence[Mapping[int, float]], images: int | None = None) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over cells of their values by seed; the unit is a seed, by Student's t.

    The cells of a seed share partition, initial weights and test images, so that their values vary together.

    Args:
        cells: the values of each cell by seed.
        images: the number of test images that all values share, whose binomial error is added (``Cell.half_width``);
            None: the values are no shares of test images.

    Returns:
        None for fewer than ``FEWEST`` seeds, and where cells have different ones.
    """
    seeds = {frozenset(cell) for cell in cells}
    if len(seeds) != 1:
        return None
    found = summarize([math.fsum(cell[seed] for cell in cells) / len(cells) for seed in cells[0]])
    half_width = with_images(found, images)
    if found is None or half_width is None:
        return None
    return found.mean - half_width, found.mean + half_width


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of two rankings of the same things; None where all values of either are equal."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    from scipy.stats import kendalltau

    return float(kendalltau(first, second).statistic)
