"""Which values a refinement tries, from tables of results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from flbench.refinement import Column, Refinement, Score, Until, around, written

GRID = (0.001, 0.01, 0.1)

#: A row's accuracy by the logarithm of its rate.
Curve = Callable[[float], float]


def peak(at: float, cost: float) -> Curve:
    return lambda rate: 0.9 - cost * abs(math.log10(rate) - at)


def refined(
    *curves: Curve,
    margin: float = 0.01,
    most: int = 3,
    until: Until = "gain",
    ended: Callable[[int, float], bool] = lambda row, rate: True,
) -> Column[float]:
    """Return the column of rows with these curves; a run is named by its rate."""

    def score(row: int, rate: float, seeds: Any) -> Score | None:
        return (0, curves[row](rate)) if ended(row, rate) else None

    grids = [{rate: [rate] for rate in GRID}] * len(curves)
    return Refinement("lr", margin, most, until, ("partition",)).refine(grids, score, lambda _, rate: rate)


def logs(column: Column[float], row: int = 0) -> list[float]:
    return sorted(round(math.log10(rate), 3) for rate in [*column.rows[row]][len(GRID) :])


def test_each_step_halves_both_intervals_around_the_best() -> None:
    column = refined(peak(-1.7, 0.1))
    # The first step gains 2 points, the second 1.5: the best is at -1.75 then, and the third gains nothing.
    assert logs(column) == [-2.5, -1.875, -1.75, -1.625, -1.5, -1.25]
    assert (column.steps, column.most_steps, column.to_come) == (3, 3, 0)


def test_it_ends_with_the_first_step_that_gains_less_than_the_margin() -> None:
    assert logs(refined(peak(-2, 0.1))) == [-2.5, -1.5]
    assert refined(peak(-1.5, 0.0199)).steps == 1
    assert refined(peak(-1.5, 0.0201)).steps == 2
    assert refined(peak(-1.7, 0.1), most=1).steps == 1


def test_flat_goes_on_until_both_neighbours_are_within_the_margin() -> None:
    assert [refined(peak(-2, cost), until="flat", most=9).steps for cost in (0.01, 0.03, 0.07)] == [1, 2, 3]
    assert refined(peak(-9, 0.001), until="flat", most=4).steps == 4  # always at the edge


def test_at_an_end_of_the_grid_a_step_goes_outward() -> None:
    assert logs(refined(peak(-4.4, 0.1))) == [-5.0, -4.0, -3.5, -2.5]
    assert logs(refined(peak(-1, 0.1))) == [-1.5, 0.0]


def test_rows_of_a_column_take_as_many_steps_as_the_slowest() -> None:
    column = refined(peak(-2, 0.001), peak(-1.7, 0.1))
    assert column.steps == 3
    assert [len(row) - len(GRID) for row in column.rows] == [6, 6]
    assert logs(column) == [-2.5, -2.25, -2.125, -1.875, -1.75, -1.5]


def test_rows_wait_for_each_other_and_partial_results_ask_for_a_part_of_the_runs() -> None:
    whole = refined(peak(-2, 0.001), peak(-1.7, 0.1))
    seen: set[tuple[int, float]] = set()
    added: list[float] = []
    while len(seen) < 2 * (len(GRID) + 6):
        column = refined(peak(-2, 0.001), peak(-1.7, 0.1), ended=lambda row, rate: (row, rate) in seen)
        assert column.added[: len(added)] == added
        assert whole.added[: len(column.added)] == column.added
        added = column.added
        assert (column.to_come > 0) == (column.steps < 3)
        seen.add(
            next((row, rate) for row, rates in enumerate(column.rows) for rate in rates if (row, rate) not in seen)
        )
    assert refined(peak(-2, 0.001), peak(-1.7, 0.1), ended=lambda row, rate: (row, rate) in seen) == whole


def test_fewer_lost_seeds_are_a_gain_and_of_equal_values_the_least_counts() -> None:
    def score(row: int, rate: float, seeds: Any) -> Score | None:
        return (0, 0.5) if rate < 0.0011 else (-1, 0.9)

    grids = [{rate: [rate] for rate in (0.01, 0.1)}]
    refine = Refinement("lr", 0.01, 3, "gain", ())
    column = refine.refine(grids, score, lambda _, rate: rate)
    assert [*column.rows[0]][2:] == [0.001, 0.0316227766017, 0.0001, 0.00316227766017]
    lost = refine.refine(grids, lambda row, rate, seeds: (-2, 0.0), lambda _, rate: rate)
    assert [*lost.rows[0]][2:] == [0.001, 0.0316227766017]


def test_values_that_no_experiment_can_have_are_left_out() -> None:
    refine = Refinement("momentum", 0.01, 1, "gain", ())
    made = refine.refine(
        [{0.5: ["a", "b"], 0.9: ["c", "d"]}],
        lambda row, value, seeds: (0, value),
        lambda run, value: run if value < 1 else None,
    )
    assert [*made.rows[0]] == [0.5, 0.9, 0.67082039325]
    assert made.added == ["c", "d"]


def test_values_are_written_with_12_digits() -> None:
    assert written(0.1 + 0.2) == 0.3
    assert around(0.3, [0.03, 0.1, 0.3], [0.03, 0.1, 0.3]) == [0.173205080757, 0.9]


def test_json_is_read_back_or_refused() -> None:
    refine = Refinement("lr", 0.01, 3, "gain", ("partition", "method.mu"))
    raw = {"axis": "lr", "margin": 0.01, "max_steps": 3, "until": "gain", "cols": ["partition", "method.mu"]}
    assert Refinement.from_json(raw) == refine
    for wrong in ({"margin": 0}, {"max_steps": 0}, {"max_steps": 11}, {"until": "dawn"}, {"margin": float("inf")}):
        with pytest.raises(ValueError, match="not a refinement"):
            Refinement.from_json({**raw, **wrong})
