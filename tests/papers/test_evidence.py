"""Verdicts over several settings, fits over the width, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flbench.papers.evidence import (
    Outcome,
    claim,
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
    assert claim("text", "source", [(one, "n=3") for one in outcomes]).verdict == verdict


def test_the_exponent_of_values_over_the_width() -> None:
    by_width = {width: [0.5 * width**0.5] * 2 for width in (4, 16, 64)}
    found = fit_exponent(by_width, fewest=3)
    assert found is not None and found.value == pytest.approx(0.5)
    assert fit_exponent(by_width, fewest=4) is None
    assert exponent_text(found) == "0.50 [0.50, 0.50]"
    assert exponent_text(None) == "–"


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
