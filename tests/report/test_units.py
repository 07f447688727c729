"""Rows that are one computation are merged, and counted once where only some of their cells are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flbench.report.board import Leaderboard
from flbench.report.write.json import to_json
from tests.report.stores import board_of, markdown_of, pair, run_of

#: FedBN is FedAvg here, FedProx is with one step, and FedLC is not.
ACCS = {"fedavg": 0.6, "fedbn": 0.6, "fedprox": 0.6, "fedlc": 0.5}


def accuracy(method: str, steps: int, norm: str, seed: int) -> float:
    better = 0.02 if method == "fedprox" and steps == 10 else 0.0
    return ACCS[method] + better + 0.1 * (norm == "ln") * (1 + 0.1 * seed) + 0.001 * seed * (1 + (method == "fedlc"))


def board(**options: Any) -> Leaderboard:
    runs = [
        run_of(accuracy(method, steps, norm, seed), method=method, E=steps, norm=norm, seed=seed)
        for method in ACCS
        for steps in (1, 10)
        for norm in ("none", "ln")
        for seed in range(3)
    ]
    return board_of(runs, **options)


def test_rows_that_are_the_same_everywhere_are_merged_under_all_names() -> None:
    found = board()
    (table,) = found.sections[0].tables
    assert [row[0].label for row in table.rows] == [*["fedavg = fedbn"] * 2, *["fedlc"] * 2, *["fedprox"] * 2]
    assert {cell.summary.n for cell in table.cells.values() if cell.summary} == {3}
    cells = to_json(found)["cells"]
    assert len(cells) == 16 and len({run for cell in cells for run in cell["run_ids"]}) == 48, "JSON has all runs"
    same = {cell["experiment"]["method"]: cell["same_as"] is not None for cell in cells}
    assert same == {"fedavg": False, "fedbn": True, "fedlc": False, "fedprox": False}


def test_a_copy_in_one_column_is_compared_once_and_shares_the_marks() -> None:
    (table,) = board().sections[0].tables
    copies = [cell for cell in table.cells.values() if cell.origin != cell.at]
    assert {table.rows[cell.at[0]][0].label for cell in copies} == {"fedprox"} and {cell.at[1] for cell in copies} == {
        0
    }
    assert Counter(cell.contest for cell in table.cells.values() if cell.contest is not None) == {0: 4, 1: 6}
    for copy in copies:
        origin = table.cells[copy.origin]
        assert (copy.is_best, copy.is_tied) == (origin.is_best, origin.is_tied)
    assert "= fedavg = fedbn ln" in markdown_of(board())


def test_planned_comparisons_average_methods_and_are_corrected_among_themselves() -> None:
    gain = pair(norm="ln", against="none")
    (section,) = board(contrasts=(gain,)).sections
    first, second = section.planned
    # Differences 0.1, 0.11, 0.12 by seed in every method: mean 0.11, sd 0.01, t = 0.11 / (0.01 / sqrt 3) = 19.05.
    assert (first.name, first.column) == ("ln against none", "E 1, classes:1")
    assert first.contrast.difference.mean == pytest.approx(0.11)
    assert (first.cells, second.cells) == (2, 3), "with one step FedProx is FedAvg"
    raw = first.contrast.difference.p
    assert raw == pytest.approx(0.00274, abs=1e-5) and first.contrast.p == pytest.approx(2 * raw)
    text = markdown_of(board(contrasts=(gain,)))
    assert "### Planned comparisons" in text and "that have a test (2)" in text
