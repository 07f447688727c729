"""Tuning, costs, ranges of learning rates and the summary over all columns, on made-up runs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.runs import Run, collect
from flbench.report.write.json import to_json
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.report.stores import board_of, experiment, finish, leaderboard_of, markdown_of, records, run_of, unfolded_of

GOLDEN = Path(__file__).parents[1] / "golden" / "tuned.md"

#: Enough of a finished run's result for provenance.
RESULT = SimpleNamespace(
    fingerprint="feedfacecafebeef",
    numerics={},
    environment={},
    status="done",
    evaluated=frozenset({50, 100}),
    samples=None,
)


def run(acc: float | None, state: str = "done", more: dict[str, Any] | None = None, **fields: Any) -> Run:
    result: Any = None if state == "pending" else RESULT
    return dataclasses.replace(run_of(acc, state, more=more, **fields), result=result)


def board(*runs: Run, **options: Any) -> Leaderboard:
    return board_of(runs, **options)


def chosen(found: Leaderboard) -> dict[str, tuple[float | None, str]]:
    """By row and column: the mean that is shown, and how it was chosen."""
    return {
        " ".join(at.label for at in (*table.rows[r], *table.cols[c])): (cell.summary and cell.summary.mean, cell.chosen)
        for section in found.sections
        for table in section.tuned
        for (r, c), cell in table.cells.items()
    }


def rates(accs: Mapping[float, float | None], **fields: Any) -> list[Run]:
    """A run for each learning rate; one without an accuracy diverged."""
    return [run(acc, "done" if acc is not None else "diverged", lr=lr, **fields) for lr, acc in accs.items()]


FEW, MANY = rates({0.01: 0.51, 0.1: 0.6, 0.3: 0.8}), rates({0.001: 0.9, 0.01: 0.89, 0.1: 0.8}, norm="ln")
PROXES = [run(mu, method={"name": "fedprox", "mu": mu}) for mu in (0.1, 0.3)]
BY_VAL = [run(0.9, more={"val_acc": 0.1}, lr=0.01), run(0.4, more={"val_acc": 0.3}, lr=0.1)]

#: Runs, options, and the mean and the choice of each row and column.
CHOICES: dict[str, tuple[list[Run], dict[str, Any], dict[str, tuple[float | None, str]]]] = {
    "among the settings that all rows of the column tried": (
        [*FEW, *MANY],
        {},
        {
            "fedavg none classes:1": (0.6, "lr 0.1, best of 2"),
            "fedavg ln classes:1": (0.89, "lr 0.01, best of 2"),
        },
    ),
    "the only setting that all rows tried": (
        [*FEW, *MANY, run(0.95, norm="fn", lr=0.01)],
        {},
        {
            "fedavg none classes:1": (0.51, "lr 0.01"),
            "fedavg ln classes:1": (0.89, "lr 0.01"),
            "fedavg fn classes:1": (0.95, "lr 0.01"),
        },
    ),
    "no setting in common": ([*FEW, run(0.9, norm="ln", lr=0.02)], {}, {}),
    "a hyperparameter that some rows lack makes rows": (
        [
            *rates({0.01: 0.5, 0.1: 0.5}),
            *(one for mu in (0.1, 0.3) for one in rates({0.01: mu, 0.1: mu}, method={"name": "fedprox", "mu": mu})),
        ],
        {"tune": ("lr", "method.mu")},
        {
            "fedavg none classes:1": (0.5, "lr 0.01, best of 2"),
            "fedprox(mu=0.1) none classes:1": (0.1, "lr 0.01, best of 2"),
            "fedprox(mu=0.3) none classes:1": (0.3, "lr 0.01, best of 2"),
        },
    ),
    "a hyperparameter of a method": (
        PROXES,
        {"tune": ("method.mu",)},
        {"fedprox none classes:1": (0.3, "method.mu 0.3, best of 2")},
    ),
    "a hyperparameter that is not named": (PROXES, {}, {}),
    "not an incomplete setting": (
        [*rates({0.01: 0.5, 0.1: 0.9}), *rates({0.01: 0.5, 0.1: None}, seed=1)],
        {},
        {"fedavg none classes:1": (0.5, "lr 0.01, best of 2")},
    ),
    "no complete setting": (
        rates({0.1: None, 1.0: None}),
        {},
        {"fedavg none classes:1": (None, "none complete of 2")},
    ),
    "by accuracy on validation data": (
        BY_VAL,
        {"select_by": "val"},
        {"fedavg none classes:1": (0.4, "lr 0.1, best of 2")},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_settings_are_chosen(name: str) -> None:
    runs, options, expected = CHOICES[name]
    found = board(*runs, **options)
    assert chosen(found) == expected
    shown = [cell for table in found.sections[0].tables for cell in table.cells.values()]
    assert len(shown) == len({one.cell for one in runs}), "all cells are still shown"


def test_cells_of_different_rates_are_never_compared() -> None:
    (table,) = board(run(0.5, norm="none", lr=0.1), run(0.9, norm="ln", lr=0.01)).sections[0].tables
    assert all(cell.contest is None for cell in table.cells.values())
    (table,) = board(run(0.5, norm="none", E=1), run(0.9, norm="ln", E=10)).sections[0].tables
    assert table.col_axes == ("local_steps", "partition"), "fields of the problem are columns"


def test_settings_are_lost_when_none_is_left_to_train() -> None:
    diverged = rates({0.1: None, 1.0: None})
    others = ([], [run(None, "running", lr=0.01)], rates({0.01: 0.5}))
    assert [board(*diverged, *other).sections[0].lost for other in others] == [1, 0, 0]


def test_a_field_that_follows_from_the_row_belongs_to_its_label() -> None:
    decays = {"none": 0.0, "ln": 0.1, "fn": 0.0}
    runs = [
        run(0.5, norm=norm, partition=partition, weight_decay=decay, method=method)
        for norm, decay in decays.items()
        for partition in ("classes:1", "iid")
        for method in ("fedavg", "scaffold")
    ]
    (table,) = board(*runs).sections[0].tables
    assert (table.row_axes, table.col_axes) == (("method", "norm"), ("partition",))
    labels = ["none, weight_decay 0", "ln, weight_decay 0.1", "fn, weight_decay 0"]
    assert sorted({row[1].label for row in table.rows}) == sorted(labels)
    assert Counter(cell.contest for cell in table.cells.values()) == {0: 6, 1: 6}
    varied = [run(0.5, norm=norm, weight_decay=decay) for norm in ("none", "ln") for decay in (0.0, 0.1)]
    assert board(*varied).sections[0].tables[0].col_axes == ("weight_decay", "partition")


def test_select_by_oracle_uses_the_test_data_of_every_round(tmp_path: Path) -> None:
    store, request = Store(tmp_path), experiment(rounds=30)
    lines = records([10, 20, 30], 0.6)
    lines[1]["acc"], lines[1]["loss"] = 0.8, 0.9
    finish(store, request, lines=lines)
    source = StoreSource(store)
    (best,) = collect(source, [request], select_by="oracle").runs
    assert best.record is not None and best.record["acc"] == 0.8
    (by_loss,) = collect(source, [request], select_by="oracle", metric="loss").runs
    assert by_loss.record is not None and by_loss.record["loss"] == pytest.approx(0.4)
    with pytest.raises(UserError, match="unknown rule 'best'; known: last, tail, val, val-tail, oracle"):
        collect(source, [request], select_by="best")
    text = markdown_of(leaderboard_of(collect(source, [request], select_by="oracle"), select_by="oracle"))
    assert "an upper bound and no result" in text


def test_the_worst_client_and_class_are_means_over_seeds() -> None:
    more = [
        {"acc_worst": 0.2, "acc_sd": 0.1, "recall": [0.9, 0.3, None]},
        {"acc_worst": 0.4, "acc_sd": 0.3, "recall": [0.7, 0.5, None]},
    ]
    text = unfolded_of(board(run(0.5, more=more[0], seed=0), run(0.6, more=more[1], seed=1)))
    assert "| fedavg | none | classes:1 | 30.00 | 20.00 | 40.00<br><sub>class 1</sub> |" in text
    assert "| fedavg | none | classes:1 | 80.00 | 40.00 | – |" in text


def test_the_range_of_learning_rates() -> None:
    accs = {0.001: 0.3, 0.01: 0.779, 0.1: 0.8, 1.0: 0.78, 10.0: 0.1}  # two points below the best, and a little more
    runs = [*rates(accs), *rates({0.001: 0.9, 0.01: 0.8, 0.1: 0.9, 1.0: None, 10.0: None}, norm="ln")]
    (found,) = board(*runs).sections[0].ranges
    none, ln = found.rows
    assert (none.low, none.high, none.decades, none.best) == (0.1, 1.0, pytest.approx(1), 0.8)
    assert (none.open_low, none.open_high, none.diverged, none.finished) == (False, False, 0, 5)
    # The best rate is the first of equals; the rate beside it is ten points worse, which ends the range.
    assert (ln.low, ln.high, ln.decades, ln.open_low) == (0.001, 0.001, 0, True)
    assert (ln.diverged, ln.finished) == (2, 5)
    assert board(*rates({0.1: 0.5, 1.0: 0.6})).sections[0].ranges == (), "two rates have no range"
    text = markdown_of(board(*runs))
    assert "| fedavg | none | classes:1 | 80.00 | 0.1 to 1 | 1.0 | 0/5 |" in text
    assert "| fedavg | ln | classes:1 | 90.00 | 0.001 to 0.001 | ≥ 0.0 | 2/5<br><sub>40 %</sub> |" in text


def test_rows_are_ranked_over_all_columns() -> None:
    accs = {"none": (0.5, 0.6), "ln": (0.7, 0.9), "fn": (0.8, 0.7), "gn": (0.9, None)}
    runs = [
        run(
            None if acc is None else acc + 0.01 * seed,
            "pending" if acc is None else "done",
            norm=norm,
            partition=p,
            seed=seed,
        )
        for norm, two in accs.items()
        for p, acc in zip(("iid", "classes:1"), two, strict=True)
        for seed in range(3)
    ]
    (found,) = board(*runs).overall
    found_rows = {row.row[1].label: (row.mean, row.rank, row.complete) for row in found.rows}
    assert list(found_rows) == ["ln", "fn", "none", "gn"], "the best first, incomplete rows last"
    assert found_rows["ln"] == (pytest.approx(0.81), 1.5, 2)
    assert found_rows["fn"] == (pytest.approx(0.76), 1.5, 2)
    assert found_rows["none"] == (pytest.approx(0.56), 3.0, 2)
    assert found_rows["gn"] == (None, None, 1)
    assert found.ranked == 3


def test_few_columns_of_two_data_sets_share_one_table() -> None:
    digits, cifar = {"dataset": "digits"}, {"dataset": "cifar10", "model": "cnn"}
    partitions = [f"dirichlet:{beta}" for beta in (0.01, 0.05, 0.1, 0.3, 0.5, 1, 3, 10)]

    def runs(of: dict[str, Any], norms: str, count: int) -> list[Run]:
        return [
            run(0.5, norm=norm, partition=partition, **of) for norm in norms.split() for partition in partitions[:count]
        ]

    (found,) = board(*runs(digits, "none ln fn", 3), *runs(cifar, "none ln", 4)).overall
    assert found.title == "" and len(found.columns) == 7 and found.columns[-1] == "cifar10, cnn, dirichlet:0.3"
    found_rows = board(*runs(digits, "none ln fn", 8), *runs(cifar, "none ln", 2))
    assert [(one.title, len(one.columns), len(one.rows)) for one in found_rows.overall] == [
        ("digits, mlp", 8, 3),
        ("cifar10, cnn", 2, 2),
    ]
    text = markdown_of(found_rows)
    assert all(f"Means over all columns: {title}" in text for title in ("digits, mlp", "cifar10, cnn"))
    assert text.count("- `mean of 4`: mean over the four columns") == 1
    unfolded = unfolded_of(found_rows)
    assert all(
        f"| norm | mean of {count} | mean rank | complete in | best or tied in |" in unfolded for count in (8, 2)
    )
    assert "| fedavg | ln | 50.00 | 2.00 | 8/8 | 8/8 |" in unfolded


def tuned_board() -> Leaderboard:
    """Two norms, three learning rates, two partitions, two seeds; one setting diverges, one run is missing."""
    runs = []
    for norm, accs in (("none", (0.30, 0.50, 0.40)), ("ln", (0.70, 0.72, None))):
        for lr, acc in zip((0.01, 0.1, 1.0), accs, strict=True):
            for partition, more in (("iid", 0.2), ("classes:1", 0.0)):
                for seed in range(2):
                    drift = 0.03 * seed - 0.02 * lr * seed + 0.001 * seed * (norm == "ln")
                    value = None if acc is None else round(acc + more + drift, 4)
                    numbers = {
                        "acc_worst": 0.1,
                        "acc_sd": 0.2,
                        "recall": [0.25, 0.75],
                        "bytes_up": 5e5,
                        "bytes_down": 1e6,
                    }
                    fields = {"norm": norm, "lr": lr, "partition": partition, "seed": seed}
                    missing = (norm, lr, partition, seed) == ("none", 0.01, "iid", 1)
                    state = "pending" if missing else "done" if value else "diverged"
                    runs.append(run(None if missing else value, state, numbers, **fields))
    return board(*runs, title="tuned", command="flbench report sweeps/tuned.yaml")


def test_golden_tuned_leaderboard() -> None:
    text = markdown_of(tuned_board())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "a wanted change is accepted by UPDATE_GOLDEN=1"


def test_json_has_the_numbers_of_the_tables() -> None:
    plain = to_json(tuned_board())
    json.dumps(plain, allow_nan=False)
    by_norm = {row["norm"]: row for row in plain["overall"][0]["rows"]}
    assert by_norm["ln"]["mean_rank"] == 1.0 and by_norm["ln"]["complete"] == 2
    details = next(one for one in plain["details"] if one["best"])
    assert details["chosen"] == "lr 0.1, best of 3" and details["to_best"] is None
    assert details["to_baseline"]["n"] == 2 and details["bytes"] == 1.5e6 and details["recall"] == [0.25, 0.75]
    assert {(one["norm"], one["where"]): (one["decades"], one["diverged"]) for one in plain["lr_ranges"]} == {
        ("none", "iid"): (0.0, 0),
        ("none", "classes:1"): (0.0, 0),
        ("ln", "iid"): (pytest.approx(1.0), 2),
        ("ln", "classes:1"): (pytest.approx(1.0), 2),
    }
