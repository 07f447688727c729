"""Verdicts over several settings, fits over the width, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flbench.papers.evidence import (
    Outcome,
    combined,
    direction,
    exponent_text,
    fit_exponent,
    mean_text,
    points_text,
    range_text,
)
from flbench.report.claims import Verdict
from flbench.report.stats import paired


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], "not run"),
        ([True, True], "holds"),
        ([True, False], "in part"),
        ([True, None], "in part"),
        (["in part", "does not hold"], "in part"),
        ([False, None], "does not hold"),
        ([False, False], "does not hold"),
        ([None], "inconclusive"),
    ],
)
def test_a_verdict_over_several_settings(outcomes: Sequence[Outcome], verdict: Verdict) -> None:
    assert combined(outcomes) == verdict


def test_the_exponent_of_values_over_the_width() -> None:
    by_width = {width: [0.5 * width**0.5] * 2 for width in (4, 16, 64)}
    found = fit_exponent(by_width, fewest=3)
    assert found is not None and found.value == pytest.approx(0.5)
    assert fit_exponent(by_width, fewest=4) is None
    assert exponent_text(found) == "0.50 [0.50, 0.50]"
    assert exponent_text(None) == "–"


#: Standard deviations of the logarithms of lambda_max by width, without normalization (``results/sharpness.parquet``),
#: and of r of normalized ReLU networks (``results/rank.parquet``).
SPREADS = {
    "lambda_max": {50: 0.206, 100: 0.139, 200: 0.094, 400: 0.071, 800: 0.051, 1600: 0.030},
    "r": {8: 0.193, 16: 0.033, 32: 0.023, 64: 0.051, 128: 0.022},
}


@pytest.mark.parametrize("name", ["lambda_max", "r"])
@pytest.mark.parametrize("draws", [3, pytest.param(10, marks=pytest.mark.nightly)])
def test_the_interval_of_an_exponent_covers_the_slope(name: str, draws: int) -> None:
    """In 95 of 100 cases, also where growth slows down; 1,000 fits, bounds of four standard errors."""
    draw, spreads, covered = np.random.default_rng(0), SPREADS[name], 0
    logs = np.log(list(spreads))
    curve = 0.7 * logs - 0.03 * logs**2
    truth = np.polyfit(logs, curve, 1)[0]
    for _ in range(1000):
        noise = np.outer(list(spreads.values()), np.ones(draws)) * draw.standard_normal((len(logs), draws))
        found = fit_exponent(dict(zip(spreads, np.exp(curve[:, None] + noise).tolist(), strict=True)))
        assert found is not None and found.low is not None and found.high is not None
        covered += found.low <= truth <= found.high
    assert covered / 1000 == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 1000) ** 0.5)


def test_a_single_value_at_a_width_leaves_no_interval() -> None:
    found = fit_exponent({1: [1.0, 1.1], 10: [100.0]})
    assert found is not None and (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(2, abs=0.05)


def test_numbers_as_text() -> None:
    assert mean_text([1.0, 2.0, 3.0]) == "2.00 ± 2.48"
    assert [mean_text(values) for values in ([1.5], [])] == ["1.50", "–"]
    assert [range_text(values) for values in ([8.123, 9.4], [1234.5], [])] == ["8.12 to 9.4", "1234", "–"]


def test_the_direction_of_a_difference_needs_an_interval_without_zero() -> None:
    first = {0: 0.9, 1: 0.91, 2: 0.92}
    gaps = [paired(first, dict.fromkeys(first, value)) for value in (0.5, 0.95, 0.91)]
    assert [direction(gap) for gap in gaps] == [1, -1, 0]
    assert points_text(gaps[0]) == "+41.0 ± 2.5"
    assert direction(paired({0: 0.9}, {0: 0.5})) == 0, "one seed has no interval"
