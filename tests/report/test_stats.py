"""Values by hand, with the t quantiles of a printed table."""

import math
import random

import pytest

from flbench.report.stats import Summary, kendall_tau, summarize, t_quantile


@pytest.mark.parametrize(("degrees", "table"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045)])
def test_quantiles_are_those_of_the_printed_table(degrees: int, table: float) -> None:
    assert t_quantile(degrees) == pytest.approx(table, abs=5e-4)


def test_three_seeds_by_hand() -> None:
    # mean 0.92; deviations -0.02, 0, 0.02; sd = sqrt(0.0008 / 2) = 0.02; half-width = 4.302653 * 0.02 / sqrt(3)
    summary = summarize([0.90, 0.92, 0.94])
    assert summary is not None
    assert summary.n == 3
    assert summary.mean == pytest.approx(0.92)
    assert summary.sd == pytest.approx(0.02)
    assert summary.half_width == pytest.approx(0.0496828, abs=1e-6)


def test_two_seeds_by_hand() -> None:
    # mean 0.5; sd = 0.1 * sqrt(2); half-width = 12.7062 * 0.1 * sqrt(2) / sqrt(2)
    summary = summarize([0.4, 0.6])
    assert summary is not None
    assert summary.sd == pytest.approx(0.1414214, abs=1e-6)
    assert summary.half_width == pytest.approx(1.27062, abs=1e-4)


def test_one_seed_has_no_spread_and_no_interval() -> None:
    assert summarize([0.7]) == Summary(1, 0.7, None, None)


def test_nothing_has_no_summary() -> None:
    assert summarize([]) is None


def test_equal_values_have_an_interval_of_width_zero() -> None:
    assert summarize([0.25, 0.25, 0.25]) == Summary(3, 0.25, 0.0, 0.0)


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


def test_kendalls_tau_is_scipys() -> None:
    from scipy.stats import kendalltau

    draw = random.Random(0)
    for n in (2, 3, 9, 30):
        first, second = ([float(draw.randrange(n)) for _ in range(n)] for _ in range(2))
        if (ours := kendall_tau(first, second)) is not None:
            assert ours == pytest.approx(kendalltau(first, second).statistic, abs=1e-12)
