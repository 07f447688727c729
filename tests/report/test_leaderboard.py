from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flbench.config import Experiment, registry_of
from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.cells import Position
from flbench.report.dataframes import tidy
from flbench.report.runs import collect
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


def test_numbers_on_an_axis_have_four_digits_or_as_many_as_keep_them_distinct() -> None:
    def columns(axis: str, experiments: list[Experiment]) -> list[str]:
        (table,) = leaderboard_of(finished_runs(experiments), cols=(axis,)).sections[0].tables
        return [at.label for (at,) in table.cols]

    assert columns("lr", [experiment(lr=lr) for lr in (0.3, 0.0316227766017)]) == ["0.03162", "0.3"]
    assert columns("lr", [experiment(lr=lr) for lr in (0.3, 0.30000001)]) == ["0.3", "0.30000001"]
    near = [experiment(method={"name": "fedprox", "mu": mu}) for mu in (0.1, 0.10000002)]
    assert columns("method.mu", near) == ["0.1", "0.10000002"]


@pytest.mark.parametrize(("metric", "row"), [("acc", 0), ("loss", 0), ("acc_worst", 0), ("seconds", 1)])
def test_higher_or_lower_is_better_by_metric(tmp_path: Path, metric: str, row: int) -> None:
    store = Store(tmp_path)
    finish(store, experiment(norm="none"), 0.9)
    finish(store, experiment(norm="ln"), 0.5, seconds=1.0)
    (table,) = board(store, metric=metric).sections[0].tables
    assert best(table) == {(row, 0)}


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


def test_every_gap_is_named(tmp_path: Path) -> None:
    def end(request: Experiment, how: str) -> None:
        if how in ("oom", "timeout"):
            fail(store, request, how)
        elif how == "running":
            claim(store, request)
        elif how == "diverged":
            finish(store, request, status=how)
        elif how != "pending":
            finish(store, request, loss=None if how == "no loss" else 1 - float(how))

    store = Store(tmp_path)
    cases: dict[str, tuple[list[str], tuple[str, list[str]]]] = {
        "iid": (["pending"] * 3, ("", ["not run"])),
        "classes:1": (["diverged"] * 3, ("", ["3/3 diverged"])),
        "classes:2": (["0.5", "0.7", "diverged"], ("0.4", ["sd 0.1414, n=2, no interval", "1/3 diverged"])),
        "classes:3": (["0.5", "0.5", "oom"], ("0.5", ["sd 0, n=2, no interval", "2/3: 1 failed (oom)"])),
        "classes:4": (["0.5", "running", "pending"], ("0.5", ["n=1, no interval", "1/3: 1 pending, 1 running"])),
        "classes:5": (["running", "timeout", "pending"], ("", ["0/3: 1 failed (timeout), 1 pending, 1 running"])),
        "classes:6": (["no loss", "0.5", "0.5"], ("0.5", ["sd 0, n=2, no interval", "2/3: 1 without loss"])),
    }
    requests = []
    for partition, (ends, _) in cases.items():
        for seed, how in enumerate(ends):
            requests.append(experiment(partition=partition, seed=seed))
            end(requests[-1], how)
    result = board(store, requests, metric="loss")
    (table,) = result.sections[0].tables
    assert {name: cell(table, "fedavg", "none", name) for name in cases} == {
        name: of for name, (_, of) in cases.items()
    }
    why = "4 diverged, 1 failed (oom), 1 failed (timeout), 5 pending, 2 running, 1 without loss"
    assert f"> **Incomplete:** 14 of 21 runs have no value: {why}." in markdown_of(result)


def test_different_numerics_are_marked_in_a_cell_and_named_below_a_table(tmp_path: Path) -> None:
    apart, mixed = Store(tmp_path / "a"), Store(tmp_path / "m")
    for store, other in ((apart, experiment(norm="ln")), (mixed, experiment(seed=1))):
        finish(store, experiment(), 0.5)
        finish(store, other, 0.5, numerics={**NUMERICS, "device": "cuda"})
    text = markdown_of(board(apart))
    assert "The cells of this table were computed with different numerics: device cpu" in text and "²" not in text
    finish(mixed, experiment(norm="ln"), 0.5)
    text = markdown_of(board(mixed))
    assert "50.00** ²<br>" in text and text.count("²") == 2, "the cell and the footnote"
    assert "² The seeds of this cell were computed with different numerics: device cpu" in text


#: Partitions in the order of columns: more than one table holds.
BETAS = ["iid", *(f"dirichlet:{beta}" for beta in (0.01, 0.05, 0.1, 0.3, 0.5, 1, 3, 10, 100))]
TWO = ["iid", "classes:1"]


@pytest.mark.parametrize(
    ("varied", "cols", "tables"),
    [
        # Each table: the axes of its columns, its title, its columns.
        ({"lr": [2, 1], "partition": TWO}, None, [("lr partition", "", "1 iid, 1 classes:1, 2 iid, 2 classes:1")]),
        (
            {"lr": [0.1, 0.01], "E": [1, 10], "partition": TWO},
            None,
            [("local_steps partition", f"lr {lr}", "1 iid, 1 classes:1, 10 iid, 10 classes:1") for lr in (0.01, 0.1)],
        ),
        ({"lr": [1, 2, 3, 4], "partition": TWO}, ("partition", "lr"), [("lr", p, "1, 2, 3, 4") for p in TWO]),
        ({"partition": BETAS}, None, [("partition", "", ", ".join(some)) for some in (BETAS[:5], BETAS[5:])]),
        ({"rounds": [20, 40]}, None, [("rounds partition", "", "20 classes:1, 40 classes:1")]),
        ({"lr": [0.1]}, ("method.mu",), [("", "", "")]),  # an axis that no run has, as with --only
        (
            {"method": ["fedavg", *({"name": "fedyogi", "server_lr": lr} for lr in (0.1, 0.3))]},
            ("method.server_lr",),
            [("method.server_lr", "", "0.1, 0.3, 1")],
        ),
        ({"dataset": ["mnist", "fashion_mnist", "digits"]}, None, [("partition", "", "classes:1")] * 3),
    ],
)  # fmt: skip
def test_cells_are_laid_out_in_tables_of_a_readable_width(
    varied: dict[str, list[Any]], cols: tuple[str, ...] | None, tables: list[tuple[str, str, str]]
) -> None:
    requests = [experiment(**dict(zip(varied, values, strict=True))) for values in product(*varied.values())]
    found = leaderboard_of(finished_runs(requests), **({"cols": cols} if cols else {}))
    shown = [table for section in found.sections for table in section.tables]
    texts = [", ".join(" ".join(at.label for at in col) for col in table.cols) for table in shown]
    assert [(" ".join(one.col_axes), one.title, text) for one, text in zip(shown, texts, strict=True)] == tables
    assert sum(len(table.cells) for table in shown) == len(requests), "no two cells share a place"


def test_a_part_of_a_wide_table_has_no_row_without_a_cell() -> None:
    requests = [*(experiment(partition=p) for p in BETAS[1:9]), experiment(norm="ln", partition="iid")]
    tables = leaderboard_of(finished_runs(requests)).sections[0].tables
    assert [len(table.rows) for table in tables] == [2, 1]


def test_centralized_runs_have_a_table_of_their_own() -> None:
    requests = [experiment(), *(experiment(kind="centralized", norm=norm) for norm in ("none", "ln"))]
    federated, central = leaderboard_of(finished_runs(requests)).sections[0].tables
    assert (federated.row_axes, len(federated.rows)) == (("method", "norm"), 1)
    assert (central.row_axes, len(central.rows)) == (("norm",), 2)
    assert central.title == "Centralized: one model on all the data"


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


def test_the_marks_of_cells_have_legends_in_the_terminal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    requests = [experiment(norm=norm, seed=seed) for norm in ("none", "ln") for seed in range(5)]
    for request in requests:
        finish(store, request, 0.9 if request.norm.name == "ln" else 0.899)
    console = Console(width=120, record=True, file=io.StringIO())
    for part in to_terminal(board(store, requests), 120):
        console.print(part)
    text = console.export_text()
    assert "90 ± " in text and " ≈ " in text
    assert text.count(" * ") == 1 and "* best of its column" in text, "without colours, too"
    assert "≈ shown to be less than 1 point worse than the best of its column" in text


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
