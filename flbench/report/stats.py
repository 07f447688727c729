"""Means, paired tests with Holm's correction, tests of ranks, equivalence, intervals across cells, Kendall's tau.

scipy has no t-test that treats equal differences exactly, and no Holm correction. statsmodels has Holm's correction,
with the same numbers, but the overhead of its calls dominates a report, which corrects thousands of small tables.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

At = TypeVar("At", bound=Hashable)

#: Coverage of every interval that is printed.
CONFIDENCE = 0.95

#: A difference is significant where its corrected p-value is below this.
LEVEL = 0.05

#: Fewer values than this have no interval: that of two is 9 standard deviations wide.
FEWEST = 3

#: Decimals of a difference or a slope of recorded numbers; the digits below are rounding errors.
DECIMALS = 12

#: What a comparison shows: a difference, none that matters, both, or nothing yet.
Verdict = Literal["more", "less", "equivalent", "more, equivalent", "less, equivalent", "open"]


def _t_quantile(freedom: float, share: float = (1 + CONFIDENCE) / 2) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def _t_share(freedom: float, t: float) -> float:
    """Return the share of Student's distribution that is below ``t``."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


@dataclass(frozen=True)
class Summary:
    """Mean and spread of ``n`` values; ``sd`` is None for one value, ``half_width`` for fewer than ``FEWEST``."""

    n: int
    mean: float
    sd: float | None
    half_width: float | None


def summarize(values: Sequence[float]) -> Summary | None:
    """Return mean, sample sd (ddof 1) and half-width of the 95 % Student-t interval of the mean; None for no values.

    The order of the values does not change a bit of the result.
    """
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Summary(n, mean, sd, None if n < FEWEST else _t_quantile(n - 1) * sd / math.sqrt(n))


def with_images(found: Summary | None, images: int | None) -> float | None:
    """Return the half-width of the 95 % interval of a mean, over seeds and over images like those of the test set.

    It is sqrt(h_seeds^2 + h_images^2) with the binomial error of the images, an upper bound (docs/statistics.md).

    Args:
        found: the summary of the values of the seeds.
        images: the number of test images of which the values are shares; None: they are no shares, and their interval
            is that over seeds alone.
    """
    if found is None or found.half_width is None:
        return None
    if not images:
        return found.half_width
    from scipy.special import ndtri

    share = min(max(found.mean, 0), 1)  # imported records may have any number
    of_images = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(share * (1 - share) / images)
    return math.hypot(found.half_width, of_images)


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
        one_sided = _t_quantile(self.n - 1, 1 - LEVEL) / _t_quantile(self.n - 1)
        return sign * self.mean - one_sided * self.half_width > bound


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Return values by seed minus others, over their common seeds, with the two-sided paired t-test (Student 1908).

    The t-test is undefined for equal differences, which accuracies on small test sets sometimes have. They get the
    p-value of the exact sign-flip test (Fisher 1935), 2 / 2^n, or 1 where they are zero.

    Returns:
        None where they have no seed in common.
    """
    gaps = [round(value - second[seed], DECIMALS) for seed, value in sorted(first.items()) if seed in second]
    summary = summarize(gaps)
    if summary is None:
        return None
    if summary.sd is None:
        return Difference(summary.n, summary.mean, None, None)
    if len(set(gaps)) == 1:
        half_width = None if summary.half_width is None else 0.0
        return Difference(summary.n, gaps[0], half_width, 2.0 ** (1 - summary.n) if gaps[0] else 1.0)
    t = summary.mean / (summary.sd / math.sqrt(summary.n))
    return Difference(summary.n, summary.mean, summary.half_width, 2 * _t_share(summary.n - 1, -abs(t)))


def paired_ranks(pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]]) -> Difference | None:
    """Return how much higher the first values of each pair rank than the second ones, over their common seeds.

    All values of a pair are ranked together; equal ones share their mean rank. A value that is only known to be beyond
    all others is infinite (O'Brien and Fleming 1987: "A paired Prentice-Wilcoxon test for censored paired data"). The
    difference of a seed is the mean over the pairs. Where first and second values are exchangeable within each seed,
    every one of the 2^n ways to exchange them is equally likely, and p is the share of ways whose mean is at least as
    far from 0 (two-sided, exact, computed from the number of ways to each sum): with n seeds at least 2 / 2^n.

    Returns:
        The difference in ranks, without an interval; None where they have no seed in common.
    """
    seeds = set.intersection(*({*side} for pair in pairs for side in pair)) if pairs else set()
    if not seeds:
        return None
    gaps = dict.fromkeys(sorted(seeds), 0)  # twice those of the ranks, summed over the pairs: whole numbers
    for first, second in pairs:
        order = sorted(side[seed] for side in (first, second) for seed in seeds)
        for seed in gaps:
            gaps[seed] += _twice_rank(order, first[seed]) - _twice_rank(order, second[seed])
    ways = Counter({0: 1})
    for gap in gaps.values():
        longer: Counter[int] = Counter()
        for total, count in ways.items():
            longer[total + gap] += count
            longer[total - gap] += count
        ways = longer
    found, n = sum(gaps.values()), len(gaps)
    extreme = sum(count for total, count in ways.items() if abs(total) >= abs(found))
    return Difference(n, found / (2 * n * len(pairs)), None, None if n == 1 else extreme / 2**n)


def _twice_rank(order: Sequence[float], value: float) -> int:
    """Return twice the mean rank of a value among sorted ones, from 1."""
    return bisect_left(order, value) + bisect_right(order, value) + 1


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
    return _t_share(found.n - 1, -room / (found.half_width / _t_quantile(found.n - 1)))


def holm(p_values: Mapping[At, float | None]) -> dict[At, float]:
    """Return p-values corrected for their number (Holm 1979, controls the family-wise error); None is left out."""
    known = sorted(((p, at) for at, p in p_values.items() if p is not None), key=lambda pair: pair[0])
    least, found = 0.0, dict[At, float]()
    for rank, (p, at) in enumerate(known):
        found[at] = least = max(least, min(1.0, (len(known) - rank) * p))
    return found


@dataclass(frozen=True)
class Contrast:
    """A difference, with p-values that are corrected for all that it was tested with (Holm)."""

    difference: Difference
    p: float | None  # None for single seeds
    equivalence: float | None = None  # p-value of the test that it is within a margin; None where it is not made

    @property
    def is_different(self) -> bool:
        """Whether the test shows a difference."""
        return self.p is not None and self.p < LEVEL and self.difference.n >= FEWEST

    @property
    def is_equivalent(self) -> bool:
        """Whether the test shows that the difference is within the margin."""
        return self.equivalence is not None and self.equivalence < LEVEL

    @property
    def verdict(self) -> Verdict:
        """What the significant tests show."""
        if not self.is_different:
            return "equivalent" if self.is_equivalent else "open"
        if self.difference.mean > 0:
            return "more, equivalent" if self.is_equivalent else "more"
        return "less, equivalent" if self.is_equivalent else "less"


def corrected(found: Mapping[At, Difference], margin: float = 0.0) -> dict[At, Contrast]:
    """Return differences with p-values that are corrected for their number; a margin of 0 tests no equivalence.

    Of 100 families at most 5 have a wrong "more" or "less", and at most 5 a wrong "equivalent".
    """
    p = holm({at: gap.p for at, gap in found.items()})
    close = holm({at: equivalence_p(gap, margin) for at, gap in found.items()}) if margin > 0 else {}
    return {at: Contrast(gap, p.get(at), close.get(at)) for at, gap in found.items()}


def contrasts(values: Mapping[At, Mapping[int, float]], reference: At) -> dict[At, Contrast]:
    """Return all other values by seed minus those at ``reference``, over their common seeds."""
    gaps = {at: paired(seeds, values[reference]) for at, seeds in values.items() if at != reference}
    return corrected({at: gap for at, gap in gaps.items() if gap})


def interval_across(cells: Sequence[Mapping[int, float]], images: int | None = None) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over cells of their values by seed; the unit is a seed, by Student's t.

    The cells of a seed share partition, initial weights and test images, so that their values vary together.

    Args:
        cells: the values of each cell by seed.
        images: the number of test images that all values share (``with_images``); None: they are no shares of images.

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


def welch_half_width(parts: Sequence[tuple[float, int]]) -> float:
    """Return the half-width of the 95 % interval of a sum or difference of independent estimates.

    Args:
        parts: the variance of each estimate, and its degrees of freedom, by which those of the sum are approximated
            (Satterthwaite 1946, Welch 1947).
    """
    total = math.fsum(variance for variance, _ in parts)
    if total == 0:
        return 0.0
    freedom = 1 / math.fsum((variance / total) ** 2 / df for variance, df in parts)
    return _t_quantile(freedom) * math.sqrt(total)


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of two rankings of the same things; None where all values of either are equal."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    from scipy.stats import kendalltau

    return float(kendalltau(first, second).statistic)
