from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from flbench.report.correlation import FEWEST_GROUPS, Correlation, exact_spearman, mean, spearman


def test_rho_by_hand() -> None:
    # Ranks 1 2 3 4 5 against 2 1 4 3 5: d^2 sums to 4, so rho = 1 - 6 * 4 / (5 * 24) = 0.8.
    found = spearman([1, 20, 300, 4000, 5e4], [0.2, 0.1, 0.4, 0.3, 0.5], range(5))
    assert found == Correlation(5, 5, pytest.approx(0.8, abs=1e-12), None), "five groups have no interval"


def test_equal_values_share_their_rank() -> None:
    draw = np.random.default_rng(3)
    x, y = draw.integers(0, 4, 50).astype(float), draw.integers(0, 5, 50).astype(float)
    found = spearman(x.tolist(), y.tolist(), range(50))
    assert found.rho == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_differences_between_strata_do_not_count() -> None:
    # Within both strata the order is opposite; overall the second stratum has more of both.
    x, y, strata = [1, 2, 3, 11, 12, 13], [3, 2, 1, 13, 12, 11], "aaabbb"
    assert spearman(x, y, range(6), strata).rho == pytest.approx(-1)
    # Ranks 1 2 3 4 5 6 against 3 2 1 6 5 4: d^2 sums to 16, rho = 1 - 6 * 16 / (6 * 35) = 19 / 35.
    assert spearman(x, y, range(6)).rho == pytest.approx(19 / 35)


def test_equal_or_no_values_have_no_correlation() -> None:
    assert spearman([1, 1, 1], [1, 2, 3], range(3)) == Correlation(3, 3, None, None)
    assert spearman([], [], []) == Correlation(0, 0, None, None)


def test_the_interval_by_hand() -> None:
    """The delete-one jackknife on Fisher's scale, with t(0.975; 5) = 2.570582, over six groups of five pairs."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(6, 5))
    y = 0.7 * x + draw.normal(size=(6, 5))
    found = spearman(x.ravel().tolist(), y.ravel().tolist(), [i // 5 for i in range(30)])
    left = [spearmanr(np.delete(x, one, 0).ravel(), np.delete(y, one, 0).ravel()).statistic for one in range(6)]
    z = np.arctanh(left)
    half_width = 2.570582 * np.sqrt(5 / 6 * np.sum((z - z.mean()) ** 2))
    centre = np.arctanh(spearmanr(x.ravel(), y.ravel()).statistic)
    assert found.interval == pytest.approx((np.tanh(centre - half_width), np.tanh(centre + half_width)), abs=1e-6)


def test_copies_of_a_cell_do_not_narrow_the_interval() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=20), draw.normal(size=20)
    once = spearman(x.tolist(), y.tolist(), range(20))
    tenfold = spearman(np.repeat(x, 10).tolist(), np.repeat(y, 10).tolist(), [i // 10 for i in range(200)])
    assert tenfold.n == 200 and tenfold.groups == 20
    assert tenfold.rho == pytest.approx(once.rho) and tenfold.interval == pytest.approx(once.interval)


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "rho"), [(6, 0.0), (6, 0.9), (10, 0.6), (10, 0.9), (20, 0.0)])
def test_the_interval_covers_the_correlation_of_cells_in_groups(count: int, rho: float) -> None:
    """Seven cells a group, which share four fifths of their variance; Spearman's rho of a normal is 6/pi asin(r/2)."""
    draw = np.random.default_rng(count)
    covered = 0
    for _ in range(300):
        shared, own = draw.normal(size=(2, count, 1)), draw.normal(size=(2, count, 7))
        x, noise = np.sqrt(0.8) * shared + np.sqrt(0.2) * own
        y = rho * x + np.sqrt(1 - rho**2) * noise
        groups = [i // 7 for i in range(7 * count)]
        low, high = spearman(x.ravel().tolist(), y.ravel().tolist(), groups).interval or (1, -1)
        covered += low <= 6 / np.pi * np.arcsin(rho / 2) <= high
    assert 0.91 <= covered / 300 <= 0.99


#: The digits sweep without copies: ten methods with three norms, and FedAvg with twelve more.
ROWS = [(norm, method) for norm in range(3) for method in range(10)] + [(norm, 0) for norm in range(3, 15)]


def crossed_cells(draw: np.random.Generator, rho: float, of_norm: float, of_method: float) -> dict[str, list[Any]]:
    """Two quantities of cells in two columns at three learning rates.

    Their norm and their method have these shares of the variance; copies of FedAvg would add rows without information.
    """
    norm, method = np.array(ROWS).T
    size = (2, len(ROWS), 2, 3)
    shares = of_norm, of_method, 1 - of_norm - of_method
    of_norms, of_methods = draw.normal(size=(2, 15, 1, 1)), draw.normal(size=(2, 10, 1, 1))
    effects = of_norms[:, norm], of_methods[:, method], draw.normal(size=size)
    x, noise = sum(np.sqrt(share) * effect for share, effect in zip(shares, effects, strict=True))
    y = rho * x + np.sqrt(1 - rho**2) * noise
    norm, method, column = (
        np.broadcast_to(of, x.shape).ravel().tolist()
        for of in (norm[:, None, None], method[:, None, None], np.arange(2)[None, :, None])
    )
    return {"x": x.ravel().tolist(), "y": y.ravel().tolist(), "norm": norm, "method": method, "column": column}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rho", "of_norm", "of_method"),
    [(0.0, 0.4, 0.2), (0.0, 0.7, 0.1), (0.0, 0.2, 0.5), (0.6, 0.4, 0.2), (0.9, 0.4, 0.2)],
)
def test_norms_and_methods_as_units_cover_the_correlation(rho: float, of_norm: float, of_method: float) -> None:
    """At least 94 of 100 times; of rows (norm x method) at most 87."""
    draw = np.random.default_rng(0)
    truth, times = 6 / np.pi * np.arcsin(rho / 2), 100
    covered = {"crossed": 0, "rows": 0}
    for _ in range(times):
        cells = crossed_cells(draw, rho, of_norm, of_method)
        x, y, norm, method = (cells[name] for name in ("x", "y", "norm", "method"))
        for way, groups, crossed in (("crossed", norm, method), ("rows", list(zip(norm, method, strict=True)), None)):
            low, high = spearman(x, y, groups, cells["column"], crossed).interval or (1, -1)
            covered[way] += low <= truth <= high
    assert covered["crossed"] / times >= 0.94
    assert covered["rows"] / times <= 0.87


def test_one_group_of_the_second_kind_changes_nothing() -> None:
    x, y = np.random.default_rng(2).normal(size=(2, 40)).tolist()
    groups = [i // 4 for i in range(40)]
    alone, crossed = spearman(x, y, groups), spearman(x, y, groups, crossed=["fedavg"] * 40)
    assert crossed.interval == alone.interval and (alone.crossed, crossed.crossed) == (None, 1)


def test_a_mean_over_groups() -> None:
    assert mean([], []) is None
    few = mean([1.0, 2.0, 6.0], "abc")
    assert few is not None and (few.n, few.groups, few.mean, few.interval) == (3, 3, 3.0, None)
    values = np.random.default_rng(0).normal(1, 1, 400)
    found = mean(values.tolist(), range(400))
    assert found is not None and found.interval is not None
    half = 1.96 * values.std(ddof=1) / 20
    assert found.interval == pytest.approx((found.mean - half, found.mean + half), abs=0.02)
    assert found.groups >= FEWEST_GROUPS


def test_the_exact_test_by_hand() -> None:
    found = exact_spearman([1, 2, 3, 4, 5], [1, 20, 30, 40, 500])
    assert found == (pytest.approx(1.0), pytest.approx(2 / 120))
    assert exact_spearman([1, 1, 1], [1, 2, 3]) is None


@pytest.mark.nightly
def test_the_exact_test_of_a_few_arms_gives_a_false_alarm_in_at_most_5_of_100_cases() -> None:
    """Eight arms, of which three have the same collapsed rank and two the accuracy of guessing; 400 data sets."""
    draw, alarms = np.random.default_rng(0), 0
    for _ in range(400):
        ranks = np.maximum(draw.normal(size=8), -0.3)
        accs = np.maximum(draw.normal(size=8), -0.7)
        _, p = exact_spearman(ranks.tolist(), accs.tolist()) or (0.0, 1.0)
        alarms += p < 0.05
    assert alarms / 400 <= 0.05 + 4 * (0.05 * 0.95 / 400) ** 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("count", [6, 10])
def test_the_mean_over_groups_is_covered(count: int) -> None:
    """In 95 of 100 cases, with groups of four to eight values that share two thirds of their variance."""
    draw, covered, times = np.random.default_rng(count), 0, 1000
    for _ in range(times):
        groups = np.repeat(np.arange(count), draw.integers(4, 9, count))
        values = draw.normal(size=count)[groups] + 0.7 * draw.normal(size=len(groups))
        found = mean(values.tolist(), groups.tolist())
        assert found is not None and found.interval is not None
        covered += found.interval[0] <= 0 <= found.interval[1]
    assert abs(covered / times - 0.95) <= 4 * (0.05 * 0.95 / times) ** 0.5
