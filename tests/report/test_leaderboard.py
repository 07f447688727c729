from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flbench.config import Experiment, registry_of
from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.cells import Position
from flbench.report.dataframes import tidy
from flbench.report.runs import Collection, collect
from flbench.report.tables import Table
from flbench.report.ticks import tick
from flbench.report.wording import lines_below, mean_text
from flbench.report.write.json import to_json
from flbench.report.write.terminal import to_terminal
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.report.stores import (
    NUMERICS,
    accuracy,
    claim,
    experiment,
    fail,
    filled,
    finish,
    finished_runs,
    leaderboard_of,
    markdown_of,
    small_sweep,
    unfolded_of,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "leaderboard.md"


def board(store: Store, requests: Iterable[Experiment] | None = None, **options: Any) -> Leaderboard:
    return leaderboard_of(collect(StoreSource(store), requests), **options)


def cell(table: Table, *labels: str) -> tuple[str, list[str]]:
    """The text of the cell at the labels of its row and column, which may have any order."""
    for (r, c), found in table.cells.items():
        if {*labels} == {at.label for at in (*table.rows[r], *table.cols[c])}:
            return mean_text(found), lines_below(found)
    raise AssertionError(f"no cell {labels}")


def best(table: Table) -> set[Position]:
    return {at for at, found in table.cells.items() if found.is_best}


def test_rows_are_method_and_norm_and_columns_partitions(tmp_path: Path) -> None:
    (section,) = board(filled(tmp_path)).sections
    (table,) = section.tables
    assert [[at.label for at in row] for row in table.rows] == [
        ["fedavg", "none"],
        ["fedavg", "ln"],
        ["scaffold", "none"],
        ["scaffold", "ln"],
    ]
    assert [[at.label for at in col] for col in table.cols] == [["classes:1"], ["dirichlet:0.1"]]
    # Seeds 0.60, 0.61, 0.62: mean 61 %, 4.303 * 1 / sqrt 3 = 2.48; 355 images: 1.96 * sqrt(0.61 * 0.39 / 355) = 5.07.
    assert cell(table, "fedavg", "none", "classes:1") == ("61.00 ± 5.65", ["sd 1.00, n=3"])
    assert best(table) == {(3, 0), (3, 1)}
    assert section.constants == "lr 0.01, batch_size 32, E 10, clients 10, rounds 20"


def test_a_variant_is_named_wherever_variants_of_one_method_differ_in_the_report() -> None:
    """Also its default, and also where a table by itself has only one of them."""
    text = experiment(method={"name": "scaffold", "variant": "text"}, dataset="fashion_mnist", model="cnn")
    alone = [experiment(method=method, partition="iid") for method in ("scaffold", "feddecorr")]
    both = leaderboard_of(finished_runs([*alone, text]))
    rows = [[row[0].label for row in section.tables[0].rows] for section in both.sections]
    assert rows == [["feddecorr", "scaffold(variant=original)"], ["scaffold(variant=text)"]]
    (table,) = leaderboard_of(finished_runs(alone)).sections[0].tables
    assert [row[0].label for row in table.rows] == ["feddecorr", "scaffold"]
    both = leaderboard_of(finished_runs([*alone, text]), rows=("method", "method.variant"))
    (table,) = both.sections[0].tables
    assert [[at.label for at in row] for row in table.rows] == [["feddecorr", "original"], ["scaffold", "original"]]


def test_every_gap_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    partitions = {
        name: [experiment(partition=name, seed=seed) for seed in range(3)]
        for name in ("iid", "classes:1", "classes:2", "classes:3", "classes:4", "classes:5", "classes:6")
    }
    for seed in range(3):
        finish(store, partitions["classes:1"][seed], status="diverged")
    finish(store, partitions["classes:2"][0], 0.5)
    finish(store, partitions["classes:2"][1], 0.7)
    finish(store, partitions["classes:2"][2], status="diverged")
    for seed in range(2):
        finish(store, partitions["classes:3"][seed], 0.5)
    fail(store, partitions["classes:3"][2], "oom")
    finish(store, partitions["classes:4"][0], 0.5)
    claim(store, partitions["classes:4"][1])
    claim(store, partitions["classes:5"][0])
    fail(store, partitions["classes:5"][1], "timeout")
    finish(store, partitions["classes:6"][0], loss=None)
    for seed in (1, 2):
        finish(store, partitions["classes:6"][seed], 0.5)
    result = board(store, [request for requests in partitions.values() for request in requests], metric="loss")
    (table,) = result.sections[0].tables
    texts = {label: cell(table, "fedavg", "none", label) for label in partitions}
    assert texts["iid"] == ("", ["not run"])
    assert texts["classes:1"] == ("", ["3/3 diverged"])
    assert texts["classes:2"] == ("0.4", ["sd 0.1414, n=2, no interval", "1/3 diverged"])
    assert texts["classes:3"] == ("0.5", ["sd 0, n=2, no interval", "2/3: 1 failed (oom)"])
    assert texts["classes:4"] == ("0.5", ["n=1, no interval", "1/3: 1 pending, 1 running"])
    assert texts["classes:5"] == ("", ["0/3: 1 failed (timeout), 1 pending, 1 running"])
    assert texts["classes:6"] == ("0.5", ["sd 0, n=2, no interval", "2/3: 1 without loss"])
    why = "4 diverged, 1 failed (oom), 1 failed (timeout), 5 pending, 2 running, 1 without loss"
    assert f"> **Incomplete:** 14 of 21 runs have no value: {why}." in markdown_of(result)


def test_numbers_on_an_axis_have_four_digits_or_as_many_as_keep_them_distinct() -> None:
    def columns(axis: str, experiments: list[Experiment]) -> list[str]:
        (table,) = leaderboard_of(finished_runs(experiments), cols=(axis,)).sections[0].tables
        return [at.label for (at,) in table.cols]

    assert columns("lr", [experiment(lr=lr) for lr in (0.3, 0.0316227766017)]) == ["0.03162", "0.3"]
    assert columns("lr", [experiment(lr=lr) for lr in (0.3, 0.30000001)]) == ["0.3", "0.30000001"]
    near = [experiment(method={"name": "fedprox", "mu": mu}) for mu in (0.1, 0.10000002)]
    assert columns("method.mu", near) == ["0.1", "0.10000002"]


def test_a_combination_without_runs_is_a_dash(tmp_path: Path) -> None:
    requests = [experiment(norm="none"), experiment(norm="ln", partition="iid")]
    text = markdown_of(board(filled(tmp_path, requests), requests))
    assert "| fedavg | none | – | 60.00<br><sub>n=1, no interval</sub> |" in text
    assert "not run" not in text


@pytest.mark.parametrize(("metric", "row"), [("acc", 0), ("loss", 0), ("acc_worst", 0), ("seconds", 1)])
def test_higher_or_lower_is_better_by_metric(tmp_path: Path, metric: str, row: int) -> None:
    store = Store(tmp_path)
    finish(store, experiment(norm="none"), 0.9)
    finish(store, experiment(norm="ln"), 0.5, seconds=1.0)
    (table,) = board(store, metric=metric).sections[0].tables
    assert best(table) == {(row, 0)}


def test_the_best_cells_have_equal_printed_means() -> None:
    runs = [
        run
        for norm, acc in (("none", 0.90001), ("ln", 0.9))
        for run in finished_runs([experiment(norm=norm)], acc=acc).runs
    ]
    (table,) = leaderboard_of(Collection(tuple(runs))).sections[0].tables
    assert len(best(table)) == 2


def test_two_versions_of_the_data_are_never_averaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    requests = [experiment(seed=seed) for seed in range(4)] + [experiment(norm="ln", seed=0)]
    finish(store, requests[0], 0.4, fingerprint="aaaaaaaaaaaaaaaa")
    finish(store, requests[1], 0.6, fingerprint="aaaaaaaaaaaaaaaa")
    finish(store, requests[2], 0.9, fingerprint="bbbbbbbbbbbbbbbb")
    result = board(store, requests)
    (table,) = result.sections[0].tables
    assert cell(table, "fedavg", "none", "data aaaaaaaa", "classes:1")[0].startswith("50.00")
    assert cell(table, "fedavg", "none", "data aaaaaaaa", "classes:1")[1][-1] == "2/4: 1 on other data, 1 pending"
    assert cell(table, "fedavg", "none", "data bbbbbbbb", "classes:1")[1][-1] == "1/4: 3 on other data"
    assert cell(table, "fedavg", "ln", "data aaaaaaaa", "classes:1") == ("", ["not run"])
    assert "**2 versions of the data** (`aaaaaaaaaaaaaaaa`, `bbbbbbbbbbbbbbbb`)" in markdown_of(result)
    assert "Data: digits aaaaaaaaaaaaaaaa (2 runs); digits bbbbbbbbbbbbbbbb (1 run)" in markdown_of(result)


def test_results_with_other_code_of_a_plugin_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for seed, plugins in enumerate(("mine=old", "mine=new", "mine=new more=1")):
        finish(store, experiment(seed=seed), 0.5, environment={"plugins": plugins})
    finish(store, experiment(norm="ln"), 0.5)  # recorded without plug-ins
    monkeypatch.setattr("flbench.report.runs.plugins_of", lambda raw: "mine=new")
    result = board(store)
    (table,) = result.sections[0].tables
    assert cell(table, "fedavg", "none", "classes:1")[1][-1] == "1/3 with other code of a plug-in"
    assert not any("code" in text for text in cell(table, "fedavg", "ln", "classes:1")[1])
    note = "The source code of the plug-in mine has changed: flbench run or sweep executes 1 finished run again."
    assert f"> **Other code:** {note}" in markdown_of(result)
    assert [one["changed_plugins"] for one in to_json(result)["cells"]] == [["mine"], []]
    frame = tidy(result.collection.runs)
    assert frame.set_index("seed")["changed_plugins"].dropna().to_dict() == {0: "mine"}


def test_mixed_numerics_are_marked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(seed=0), 0.5)
    finish(store, experiment(seed=1), 0.5, numerics={**NUMERICS, "device": "cuda"})
    finish(store, experiment(norm="ln"), 0.5)
    text = markdown_of(board(store))
    assert "50.00** ²<br>" in text
    assert text.count("²") == 2, "the cell and the footnote"
    assert "² The seeds of this cell were computed with different numerics: device cpu, executor loop" in text


def test_cells_with_different_numerics_are_footnoted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), 0.5)
    finish(store, experiment(norm="ln"), 0.5, numerics={**NUMERICS, "executor": "stacked"})
    text = markdown_of(board(store))
    assert "The cells of this table were computed with different numerics: device cpu, executor loop" in text
    assert "²" not in text


def test_a_split_table_has_no_rows_without_a_cell(tmp_path: Path) -> None:
    requests = [experiment(partition=f"dirichlet:{beta}") for beta in (0.01, 0.05, 0.1, 0.3, 0.5, 1, 3, 10)]
    tables = leaderboard_of(finished_runs([*requests, experiment(norm="ln", partition="iid")])).sections[0].tables
    assert [len(table.rows) for table in tables] == [2, 1]


def test_methods_without_a_shared_model_are_ranked_on_the_whole_test_set(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), 0.6)
    finish(store, experiment(method="fedbn", norm="bn"), 0.95, acc_global=0.31, acc_personal=0.99)
    (section,) = board(store).sections
    assert cell(section.tables[0], "fedbn", "bn", "classes:1")[0] == "31.00"
    assert best(section.tables[0]) == {(0, 0)}
    assert cell(section.own_shard[0], "fedbn", "bn", "classes:1")[0] == "99.00"
    assert best(section.own_shard[0]) == set()
    text = markdown_of(board(store))
    assert "| fedbn ¹ | bn | 31.00" in text
    assert "¹ Parts of the model stay on the clients" in text
    assert text.index("### Own shard") < text.index("a constant answer scores 100 %") < text.index("99.00")


def test_centralized_runs_have_rows_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), 0.6)
    finish(store, experiment(kind="centralized", norm="ln"), 0.9)
    federated, central = board(store).sections[0].tables
    assert [[at.label for at in row] for row in federated.rows] == [["fedavg", "none"]]
    assert central.title == "Centralized: one model on all the data"
    assert [[at.label for at in row] for row in central.rows] == [["ln"]]
    assert "### Centralized: one model on all the data\n\n| norm | accuracy |" in markdown_of(board(store))


def test_data_sets_and_models_have_sections(tmp_path: Path) -> None:
    requests = [experiment(dataset=dataset, model="cnn") for dataset in ("mnist", "cifar10")] + [experiment()]
    assert [section.title for section in leaderboard_of(finished_runs(requests)).sections] == [
        "digits, mlp",
        "cifar10, cnn",
        "mnist, cnn",
    ]


def test_few_columns_make_one_table() -> None:
    requests = [experiment(partition=p, lr=lr) for p in ("iid", "classes:1") for lr in (0.1, 0.01)]
    (table,) = leaderboard_of(finished_runs(requests)).sections[0].tables
    assert table.col_axes == ("lr", "partition")
    assert [[at.label for at in col] for col in table.cols] == [
        ["0.01", "iid"],
        ["0.01", "classes:1"],
        ["0.1", "iid"],
        ["0.1", "classes:1"],
    ]
    assert "| method | norm | lr 0.01<br>iid |" in unfolded_of(leaderboard_of(finished_runs(requests)))


def test_many_columns_make_a_table_for_each_value_of_the_slower_axes() -> None:
    requests = [
        experiment(partition=p, lr=lr, E=steps)
        for p in ("iid", "classes:1", "classes:2")
        for lr in (0.1, 0.01, 0.001)
        for steps in (1, 10)
    ]
    tables = leaderboard_of(finished_runs(requests)).sections[0].tables
    assert [table.title for table in tables] == ["lr 0.001", "lr 0.01", "lr 0.1"]
    assert all(table.col_axes == ("local_steps", "partition") and len(table.cols) == 6 for table in tables)
    by_lr = leaderboard_of(finished_runs(requests), cols=("partition", "lr")).sections[0].tables
    assert [table.title for table in by_lr] == [
        f"E {e}, {p}" for e in (1, 10) for p in ("iid", "classes:1", "classes:2")
    ]
    assert all(table.col_axes == ("lr",) for table in by_lr)


def test_one_long_axis_is_split_evenly() -> None:
    requests = [experiment(partition=f"dirichlet:{beta}") for beta in (0.01, 0.05, 0.1, 0.3, 0.5, 1, 3, 10, 100)]
    tables = leaderboard_of(finished_runs([*requests, experiment(partition="iid")])).sections[0].tables
    assert [len(table.cols) for table in tables] == [5, 5]
    assert [at.label for (at,) in tables[0].cols] == ["iid", *(f"dirichlet:{beta}" for beta in (0.01, 0.05, 0.1, 0.3))]


def test_a_hyperparameter_may_be_an_axis() -> None:
    requests = [experiment(method={"name": "fedyogi", "server_lr": lr}) for lr in (0.1, 0.3)] + [experiment()]
    (table,) = leaderboard_of(finished_runs(requests), cols=("method.server_lr",)).sections[0].tables
    assert [row[0].label for row in table.rows] == ["fedavg", "fedyogi"]
    assert [[at.label for at in col] for col in table.cols] == [["0.1"], ["0.3"], ["1"]]


def test_requests_of_different_rounds_have_columns_of_their_own() -> None:
    requests = [experiment(rounds=rounds) for rounds in (20, 40)]
    (table,) = leaderboard_of(finished_runs(requests)).sections[0].tables
    assert table.col_axes == ("rounds", "partition")


def test_no_two_cells_share_a_position(tmp_path: Path) -> None:
    requests = [
        experiment(momentum=m, participation=p, bias=b) for m in (0, 0.9) for p in (0.5, 1) for b in (True, False)
    ]
    (section,) = leaderboard_of(finished_runs(requests)).sections
    assert sum(len(table.cells) for table in section.tables) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "acc_glob"}, "unknown metric 'acc_glob'; did you mean 'acc_global'? known: acc_global,"),
        (
            {"metric": "val_acc"},
            "no run records 'val_acc': set val_fraction, for example to 0.1, in base; recorded: acc",
        ),
        ({"rows": ("methd",)}, "cannot lay out a leaderboard by 'methd': unknown field 'methd'"),
        ({"cols": ("seed",)}, "cannot lay out a leaderboard by 'seed': a cell is the mean over its seeds"),
        ({"cols": ("method.mx",)}, "unknown setting 'mx' of any method; did you mean 'mu'?"),
        ({"cols": ("run_id",)}, "cannot lay out a leaderboard by 'run_id'"),
        ({"tune": ("model.widths",)}, "by 'model.widths': each data set and model has tables of its own"),
    ],
)
def test_an_invalid_layout_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        leaderboard_of(finished_runs([experiment()]), **options)


def test_an_axis_that_no_run_has_is_left_out() -> None:
    """A part of a sweep may lack the cells for which its file names the axis, as with --only."""
    (table,) = leaderboard_of(finished_runs([experiment()]), cols=("method.mu",)).sections[0].tables
    assert table.col_axes == ()
    requests = [experiment(kind="centralized", norm=norm) for norm in ("none", "ln")]
    (table,) = leaderboard_of(finished_runs(requests)).sections[0].tables
    assert (table.row_axes, [row[0].label for row in table.rows]) == (("norm",), ["none", "ln"])


def test_the_order_of_runs_changes_nothing(tmp_path: Path) -> None:
    store, requests = filled(tmp_path), small_sweep()
    shuffled = random.Random(0).sample(requests, len(requests))
    assert markdown_of(board(store, requests)) == markdown_of(board(store, shuffled)) == markdown_of(board(store))


def test_documents_name_no_host_and_no_path(tmp_path: Path) -> None:
    text = markdown_of(board(filled(tmp_path))) + str(to_json(board(filled(tmp_path / "b"))))
    assert "laptop-of-somebody" not in text
    assert str(tmp_path) not in text
    assert "argv" not in text
    assert not re.search(r"20\d\d-\d\d-\d\d", text)


@pytest.mark.parametrize(
    ("field", "raw", "shown"),
    [
        ("dataset", "folder:/home/me/pets", "folder:pets"),
        ("dataset", {"name": "folder", "path": "~/my pets (2)", "size": 16}, "folder:my pets (2)(size=16)"),
        ("dataset", "folder:data/pets", "folder:data/pets"),
        ("dataset", "arrays:/home/me/a, b.npz", "arrays:a, b.npz"),
        ("partition", {"name": "given", "path": "/home/me/rows.json", "content": "0" * 16}, "given:rows.json"),
        ("partition", "dirichlet:0.1", "dirichlet:0.1"),
    ],
)
def test_labels_name_no_directories(field: str, raw: Any, shown: str) -> None:
    registry = registry_of(field)
    assert registry is not None
    assert tick(field, registry.parse(raw)).label.removesuffix("(content=0000000000000000)") == shown


@pytest.mark.parametrize("width", [80, 120, 200])
def test_terminal_tables_fit(tmp_path: Path, width: int) -> None:
    requests = [
        experiment(method=method, norm="ln", partition=f"dirichlet:{beta}", seed=seed)
        for method in ("fedavg", "fedyogi")
        for beta in (0.01, 0.03, 0.1, 0.3, 1, 3)
        for seed in range(2)
    ]
    result = board(filled(tmp_path, requests), requests)
    console = Console(width=width, record=True, file=io.StringIO())
    for part in to_terminal(result, width):
        console.print(part)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("fedyogi" in line for line in lines) == {80: 2, 120: 1, 200: 1}[width]
    assert all(f"dirichlet:{beta:g}" in "".join(lines) for beta in (0.01, 0.03, 0.1, 0.3, 1, 3)), "no column is cut"


def test_json_is_plain_and_complete(tmp_path: Path) -> None:
    store = Store(tmp_path)
    requests = [experiment(seed=seed) for seed in range(3)]
    finish(store, requests[0], 0.4)
    finish(store, requests[1], 0.6)
    fail(store, requests[2], "oom")
    plain = to_json(board(store, requests))
    (only,) = plain["cells"]
    assert plain["schema"] == 3
    assert (only["mean"], only["n"], only["wished"], only["values"]) == (0.5, 2, 3, [0.4, 0.6])
    assert only["sd"] == pytest.approx(0.141421356)
    assert only["gaps"] == {"failed (oom)": 1}
    assert only["seeds"] == [0, 1, 2] and only["run_ids"] == [request.run_id for request in requests]
    assert only["experiment"]["partition.n"] == 1 and "seed" not in only["experiment"]
    assert plain["provenance"]["data"] == {"digits e3713c9c6ae47b99": 2}


def test_diverged_runs_are_finished(tmp_path: Path) -> None:
    store, requests = Store(tmp_path), [experiment(seed=seed) for seed in range(2)]
    finish(store, requests[0], 0.5)
    finish(store, requests[1], status="diverged")
    assert "> 1 of 2 runs diverged; it has no value." in markdown_of(board(store, requests))


def everything(path: Path) -> tuple[Store, list[Experiment]]:
    """A store with every kind of cell."""
    store, requests = Store(path), small_sweep()
    skipped = experiment(method="scaffold", norm="ln", partition="dirichlet:0.1").cell_id
    for request in requests:
        if request.cell_id == skipped:
            continue
        if (request.norm.name, request.seed) == ("ln", 2):
            fail(store, request, "oom") if request.partition.name == "classes" else finish(
                store, request, status="diverged"
            )
        else:
            finish(store, request, accuracy(request))
    extra = [experiment(method="fedbn", norm="bn", seed=seed) for seed in range(3)]
    for request in extra:
        finish(store, request, 0.4 + 0.01 * request.seed, acc_personal=1.0)
    central = [experiment(kind="centralized", norm=norm) for norm in ("none", "ln")]
    for request in central:
        finish(store, request, 0.97, environment={"git_dirty": True})
    return store, [*requests, *extra, *central]


def test_golden_leaderboard(tmp_path: Path) -> None:
    store, requests = everything(tmp_path)
    specs = (("demo", "0123456789abcdef"),)
    text = markdown_of(board(store, requests, title="demo", specs=specs, command="flbench report sweeps/demo.yaml"))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "a wanted change is accepted by UPDATE_GOLDEN=1"
