"""The expected value of fewer tried settings, by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from flbench.report.board import Leaderboard
from flbench.report.tuning import first_of_drawn
from tests.report.stores import board_of, run_of

#: Test and validation accuracies by learning rate of three seeds; None: diverged, which counts with 0.1 on digits.
RATES = {
    0.01: ([0.4, 0.5, 0.6], 0.3),
    0.1: ([0.7, 0.8, 0.9], 0.8),
    1.0: ([0.8, 0.9, 1.0], 0.6),
    10.0: ([0.9, None, 0.9], 0.9),
}


def board(**options: str) -> Leaderboard:
    runs = [
        run_of(
            acc, "diverged" if acc is None else "done", more={"val_acc": val_acc}, lr=lr, seed=seed, val_fraction=0.2
        )
        for lr, (accs, val_acc) in RATES.items()
        for seed, acc in enumerate(accs)
    ]
    return board_of(runs, select_by="val-tail", **options)


def test_probabilities_are_those_of_all_draws() -> None:
    for drawn in range(1, 6):
        draws = list(combinations(range(5), drawn))
        assert first_of_drawn(5, drawn) == pytest.approx(
            [sum(min(d) == i for d in draws) / len(draws) for i in range(5)]
        )


def test_the_expected_value_is_that_of_the_best_by_validation_accuracy() -> None:
    (found,) = board().sections[0].budgets
    (row,) = found.rows
    # Ranked by validation accuracy: 0.8, 0.9 and 0.5 on the test data; the rate with a diverged seed is the last, with
    # (0.9 + 0.1 + 0.9) / 3. One: their mean. Two: 3/6, 2/6, 1/6 and 0. Four: the chosen one.
    last = 1.9 / 3
    means = [one.mean for one in row.curve]
    assert means[0] == pytest.approx((0.8 + 0.9 + 0.5 + last) / 4)
    assert means[1] == pytest.approx(0.8 / 2 + 0.9 / 3 + 0.5 / 6)
    assert means[2] == pytest.approx(0.8 * 3 / 4 + 0.9 / 4)
    assert means[3] == pytest.approx(0.8) and row.cell.summary is not None
    # All seeds differ by 0.1: sd 0.1, half-width 4.303 * 0.1 / sqrt 3.
    assert row.curve[3].half_width == pytest.approx(0.2484, abs=1e-4)


def test_a_row_with_missing_runs_has_no_curve() -> None:
    runs = [run_of(0.5, lr=0.1), run_of(None, "failed", lr=1.0)]
    assert board_of(runs).sections[0].budgets == ()
