"""Values by hand, with the t quantiles of a printed table."""

import math
import random

import pytest
from scipy.stats import ttest_rel

from flbench.report.stats import FEWEST, Difference, Summary, holm, interval_across, kendall_tau, paired, summarize


@pytest.mark.parametrize(("degrees", "table"), [(2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045)])
def test_quantiles_are_those_of_the_printed_table(degrees: int, table: float) -> None:
    summary = summarize(range(degrees + 1))
    assert summary is not None and summary.sd is not None and summary.half_width is not None
    assert summary.half_width * math.sqrt(summary.n) / summary.sd == pytest.approx(table, abs=5e-4)


@pytest.mark.parametrize(
    ("values", "summary"),
    [
        ([], None),
        ([0.7], Summary(1, 0.7, None, None)),
        # sd = 0.1 * sqrt(2); an interval of 12.7 standard errors would say nothing.
        ([0.4, 0.6], Summary(2, pytest.approx(0.5), pytest.approx(0.1414214, abs=1e-6), None)),
        # sd = sqrt(0.0008 / 2); half-width = 4.302653 * 0.02 / sqrt(3)
        ([0.9, 0.92, 0.94], Summary(3, pytest.approx(0.92), pytest.approx(0.02), pytest.approx(0.0496828, abs=1e-6))),
        ([0.25, 0.25, 0.25], Summary(3, 0.25, 0.0, 0.0)),
    ],
)
def test_mean_sd_and_half_width_by_hand(values: list[float], summary: Summary | None) -> None:
    assert summarize(values) == summary


def test_the_order_of_seeds_does_not_change_a_bit() -> None:
    assert summarize([0.1, 0.2, 0.7]) == summarize([0.7, 0.1, 0.2])


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),
        ([1, 1, 2], [1, 2, 3], 2 / math.sqrt(2 * 3)),  # one pair is tied in the first
        ([1, 1, 1], [1, 2, 3], None),
        ([1, 2], [5, 5], None),
        ([1], [1], None),
    ],
)
def test_kendalls_tau_by_hand(first: list[float], second: list[float], tau: float | None) -> None:
    found = kendall_tau(first, second)
    assert found == (None if tau is None else pytest.approx(tau, abs=1e-12))


def test_paired_differences_by_hand() -> None:
    # differences 0.2, 0.4, 0.6: mean 0.4, sd 0.2, t = 0.4 / (0.2 / sqrt(3)) = 3.4641; of two degrees of freedom
    # p = 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12 / 14)
    found = paired({0: 0.5, 1: 0.8, 2: 0.9, 7: 0.1}, {2: 0.3, 0: 0.3, 1: 0.4, 9: 0.9})
    assert found is not None
    assert (found.n, found.mean) == (3, pytest.approx(0.4, abs=1e-12))
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)
    assert found.half_width == pytest.approx(4.3026527 * 0.2 / math.sqrt(3), abs=1e-7)


def test_the_paired_test_agrees_with_scipy() -> None:
    draw = random.Random(1)
    for n in (2, 3, 5, 20):
        first, second = ([draw.random() for _ in range(n)] for _ in range(2))
        found, theirs = paired(dict(enumerate(first)), dict(enumerate(second))), ttest_rel(first, second)
        assert found is not None
        assert found.p == pytest.approx(theirs.pvalue, abs=1e-9)
        if n < FEWEST:
            assert found.half_width is None
            continue
        low, high = theirs.confidence_interval()
        assert found.half_width is not None
        assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high), abs=1e-9)


def test_differences_without_spread_or_pairs() -> None:
    assert paired({0: 0.5}, {1: 0.5}) is None
    assert paired({0: 0.5}, {0: 0.25}) == Difference(1, 0.25, None, None)
    assert paired({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}) == Difference(2, 0.0, None, 1.0)
    # 0.7 - 0.6 and 0.8 - 0.7 differ in their last bits alone
    assert paired({0: 0.7, 1: 0.8}, {0: 0.6, 1: 0.7}) == Difference(2, 0.1, None, 0.5)
    same = paired(dict.fromkeys(range(5), 0.75), dict.fromkeys(range(5), 0.5))
    assert same == Difference(5, 0.25, 0.0, 2 / 2**5), "2 / 2^n, the p-value of the sign-flip test"


@pytest.mark.parametrize(
    ("raw", "corrected"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 x 0.01; 2 x 0.03; max(0.06, 1 x 0.04)
        ([0.5, 0.4, 0.9], [1.0, 1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
    ],
)
def test_holm_by_hand(raw: list[float], corrected: list[float]) -> None:
    assert holm(dict(enumerate(raw))) == pytest.approx(dict(enumerate(corrected)), abs=1e-12)


def test_the_interval_across_cells_has_seeds_as_units() -> None:
    cells = [{0: 0.1, 1: 0.2, 2: 0.4}, {0: 0.5, 1: 0.6, 2: 0.9}]
    # means by seed 0.3, 0.4, 0.65: mean 0.45, sd sqrt(0.065 / 2), t(0.975; 2) = 4.303
    half_width = 4.302653 * math.sqrt(0.065 / 2 / 3)
    assert interval_across(cells) == pytest.approx((0.45 - half_width, 0.45 + half_width), abs=1e-6)
    wider = math.hypot(half_width, 1.959964 * math.sqrt(0.45 * 0.55 / 355))
    assert interval_across(cells, images=355) == pytest.approx((0.45 - wider, 0.45 + wider), abs=1e-6)
    assert interval_across([cells[0], {0: 0.5, 1: 0.6, 3: 0.9}]) is None, "other seeds"
    assert interval_across([{0: 0.1, 1: 0.2}]) is interval_across([]) is None
