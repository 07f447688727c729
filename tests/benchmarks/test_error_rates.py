"""Simulated error rates of curves: the table of docs/error-rates.md, and what the rules promise."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.error_rates import DRAWS, PAGE, SEEDS, TABLE, Shares, measure, table

#: Four standard errors of a share of 5 % and of 2.5 %.
ROOM, ROOM_OF_HALF = (4 * (share * (1 - share) / DRAWS) ** 0.5 for share in (0.05, 0.025))


@cache
def found() -> Shares:
    return measure()


def test_each_row_of_the_table_is_simulated() -> None:
    shares = measure(draws=1)
    assert {name for _, name in TABLE} <= shares.keys()
    assert table(shares).count("\n") == len(TABLE) + 1


@pytest.mark.nightly
def test_the_page_has_the_simulated_rates() -> None:
    assert f"\n{table(found())}\n" in PAGE.read_text(encoding="utf-8"), "python -m benchmarks.error_rates --write"


@pytest.mark.nightly
def test_rules_keep_what_they_promise() -> None:
    for name in ("fast, all get there: equal", "fast, half are censored: equal", "alike: holm", "alike: max"):
        assert all(share <= 0.05 + ROOM for share in found()[name].values()), name
    for name in ("flat: rising", "margin: plateau"):
        assert all(share <= 0.025 + ROOM_OF_HALF for share in found()[name].values()), name
    for name in ("slow: shown", "peak: shown"):
        assert all(share <= 0.025 for share in found()[name].values()), name
    most = max(SEEDS)
    assert found()["slow: wrong"][most] > 0.5 < found()["peak: wrong"][most], "without the checks"
    assert found()["alike: any"][most] > 0.05 + ROOM, "three measures without correction"
