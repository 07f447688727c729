"""Ties and differences in tables, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flbench.report.board import Leaderboard
from tests.report.stores import board_of, markdown_of, run_of

#: Values of three seeds by normalization. To ln: none -0.2 with differences -0.19, -0.2, -0.21 (t = -34.6, p 0.00083);
#: fn -0.01, 0, 0.01, which has no mean; gn -0.3, 0, 0.15 (p 0.74).
VALUES: Mapping[str, Sequence[float]] = {
    "none": (0.61, 0.61, 0.61),
    "fn": (0.79, 0.81, 0.83),
    "ln": (0.8, 0.81, 0.82),
    "gn": (0.5, 0.81, 0.97),
}


def board(values: Mapping[str, Sequence[float | None]] = VALUES, **options: Any) -> Leaderboard:
    runs = [
        run_of(acc, "failed" if acc is None else "done", norm=norm, seed=seed)
        for norm, accs in values.items()
        for seed, acc in enumerate(accs)
    ]
    return board_of(runs, **options)


def table(found: Leaderboard) -> Any:
    return found.sections[0].tables[0]


def names(found: Leaderboard, mark: str) -> set[str]:
    """The norms of the cells with a mark: ``is_best``, ``is_tied``, ``to_best``."""
    return {table(found).rows[r][1].label for (r, _), cell in table(found).cells.items() if getattr(cell, mark)}


def test_cells_that_are_shown_to_be_less_than_a_point_worse_are_tied() -> None:
    # rms: -0.5 points with sd 0.1, so that the one-sided bound is -0.5 - 2.92 * 0.1 / sqrt 3 = -0.67. gn is undecided.
    found = board({**VALUES, "rms": (0.795, 0.806, 0.814)})
    assert names(found, "is_best") == {"ln", "fn"}, "equal printed means"
    assert names(found, "is_tied") == {"rms"}
    text = markdown_of(found)
    assert "| fedavg | rms | **80.50 ± " in text and "| fedavg | gn | 76.00 ± " in text
    # No spread over seeds; of the 355 images 1.96 * sqrt(0.61 * 0.39 / 355) = 5.07 points.
    assert "| fedavg | none | 61.00 ± 5.07 |" in text
    narrow = board({**VALUES, "rms": (0.795, 0.806, 0.814)}, margin=0.006)
    assert names(narrow, "is_tied") == set()


def test_p_values_are_corrected_for_the_column() -> None:
    found = board()
    contrasts = {table(found).rows[r][1].label: c.to_best for (r, _), c in table(found).cells.items() if c.to_best}
    raw = {name: one.difference.p for name, one in contrasts.items()}
    assert raw["none"] == pytest.approx(2 * (0.5 - 0.5 * 34.641016 / (34.641016**2 + 2) ** 0.5), abs=1e-6)
    assert contrasts["none"].p == pytest.approx(3 * raw["none"]), "the smallest of three"
    assert contrasts["gn"].p == pytest.approx(1.0)


def test_single_seeds_allow_no_test() -> None:
    found = board({"none": [0.5], "ln": [0.6]})
    assert names(found, "is_best") == {"ln"}
    assert names(found, "is_tied") == set()
    assert "### Differences" not in markdown_of(found)


def test_incomplete_cells_are_neither_best_nor_tied() -> None:
    found = board({"none": [0.6, 0.7, 0.65], "ln": [0.9, 0.9, None], "fn": [0.6, 0.71, 0.66]})
    assert names(found, "is_best") == {"fn"}
    assert names(found, "is_tied") == set(), "0.67 points worse, and undecided with three seeds"
    assert names(found, "to_best") == {"none"}


def test_the_baseline_is_fedavg_without_normalization_by_default() -> None:
    text = markdown_of(board())
    assert "| method | norm | partition | to fedavg none | to the best |" in text
    assert "| fedavg | ln | classes:1 | +20.00 ± 2.48<br><sub>p 0.0025, n=3</sub> |" in text  # 3 x 0.00083
    assert "to fedavg ln |" in markdown_of(board(baseline=("norm=ln",)))
    assert "| method | norm | partition | to the best |" in markdown_of(board(baseline=("norm=bn",)))


def test_values_beyond_a_share_have_the_interval_over_seeds() -> None:
    text = markdown_of(board({**VALUES, "rms": (1.2, 1.3, 1.4)}))
    assert "| fedavg | rms | 130.00 ± 24.84 |" in text  # 4.303 * 10 / sqrt 3; such records can only be imported
