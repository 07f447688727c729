"""Which setting a rule chooses, and which of its numbers it reports, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flbench.exchange import exports, transfer
from flbench.exchange.transfer import FilesSource
from flbench.report.cells import Cell
from flbench.report.runs import collect
from flbench.report.wording import lines_below
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.report.stores import experiment, finish, leaderboard_of, markdown_of, records

#: By learning rate: test and validation accuracies of the evaluations after rounds 1 to 6. The means of the last five
#: are 0.6, 0.7, 0.5 and 0.5, 0.4, 0.3; rule ``val`` would report 0.9, of the round with 0.8.
CURVES: Mapping[float, tuple[Sequence[float], Sequence[float]]] = {
    0.1: ([0.1, 0.4, 0.5, 0.6, 0.7, 0.8], [0.1, 0.4, 0.4, 0.5, 0.6, 0.6]),
    0.2: ([0.1, 0.6, 0.7, 0.7, 0.7, 0.8], [0.1, 0.4, 0.4, 0.4, 0.4, 0.4]),
    0.4: ([0.9, 0.5, 0.5, 0.5, 0.5, 0.5], [0.8, 0.3, 0.3, 0.3, 0.3, 0.3]),
}


def store_with(path: Path, rates: Sequence[float]) -> Store:
    store = Store(path)
    for lr in rates:
        lines = records([1, 2, 3, 4, 5, 6], 0.5)
        for line, acc, val_acc in zip(lines, *CURVES[lr], strict=True):
            line |= {"acc": acc, "val_acc": val_acc}
        finish(store, experiment(lr=lr, val_fraction=0.2, rounds=6, eval_every=1), lines=lines)
    return store


def chosen_by(source: Any, rule: Any) -> Cell:
    (table,) = leaderboard_of(collect(source, select_by=rule), select_by=rule).sections[0].tuned
    (cell,) = table.cells.values()
    return cell


def test_val_tail_chooses_on_held_out_data_and_reports_the_mean_of_the_last_five(tmp_path: Path) -> None:
    store = store_with(tmp_path / "s", [0.1, 0.2, 0.4])
    exports.write(tmp_path / "ends.parquet", transfer.export_runs(store, store.run_ids(), ends=True)[0])
    for source in (StoreSource(store), FilesSource([tmp_path / "ends.parquet"])):
        cell = chosen_by(source, "val-tail")
        assert cell.values == (pytest.approx(0.6),)
        below = ["n=1, no interval", "last 80.00", "lr 0.1, best of 3, edge of the grid"]
        assert lines_below(cell) == below
        assert chosen_by(source, "tail").values == (pytest.approx(0.7),), "tail chooses on the test data"
    assert chosen_by(StoreSource(store), "val").values == (0.9,)


def test_cells_at_the_edge_of_the_grid_are_counted(tmp_path: Path) -> None:
    board = leaderboard_of(
        collect(StoreSource(store_with(tmp_path / "a", [0.1, 0.2, 0.4])), select_by="val-tail"), select_by="val-tail"
    )
    assert board.sections[0].at_edge == 1
    assert "In 1 of 1 cell it is at the edge of the grid" in markdown_of(board)
    assert "edge" not in chosen_by(StoreSource(store_with(tmp_path / "b", [0.1, 0.4])), "last").chosen, "two values"
    assert "edge" not in chosen_by(StoreSource(store_with(tmp_path / "c", [0.1, 0.2, 0.4])), "tail").chosen, "inside"
