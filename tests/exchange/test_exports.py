from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flbench.choices import SelectBy
from flbench.cli import app
from flbench.config import Experiment, canonical_json
from flbench.errors import UserError
from flbench.exchange import exports, transfer
from flbench.exchange.transfer import FilesSource
from flbench.report.cells import cells_of
from flbench.report.runs import collect
from flbench.run_sources import Source, StoreSource
from flbench.store import Lease, Store
from tests.report.stores import (
    FORGOTTEN,
    accuracy,
    claim,
    experiment,
    fail,
    filled,
    finish,
    leaderboard_of,
    markdown_of,
    records,
    small_sweep,
)


def export(store: Store, path: Path) -> Path:
    exported, problems = transfer.export_runs(store, store.run_ids())
    assert problems == ()
    exports.write(path, exported)
    return path


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], *, sign: bool = True) -> None:
    """Change the first row of a file, and compute its checksum again, as an attacker would."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows[0])
    if sign:
        rows[0]["sha256"] = exports._checksum(rows[0])
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def import_file(store: Store, path: Path) -> dict[str, int]:
    return dict(Counter(verdict for _, verdict in transfer.import_runs(store, exports.read(path), Lease.here())))


def text(source: Source, requests: list[Experiment] | None = None, select_by: SelectBy = "last") -> str:
    return markdown_of(leaderboard_of(collect(source, requests, select_by=select_by), select_by=select_by))


def files_of(store: Store) -> dict[str, bytes]:
    return {str(path.relative_to(store.root)): path.read_bytes() for path in store.root.rglob("*") if path.is_file()}


def varied(path: Path) -> Store:
    """Done, diverged before the first record, extended, failed."""
    store = filled(path, small_sweep()[:5])
    finish(store, experiment(norm="gn"), status="diverged")
    finish(store, experiment(norm="fn"), lines=records([10, 20], 0.6))
    finish(store, experiment(norm="fn", rounds=40), lines=records([10, 20], 0.6) + records([30, 40], 0.8))
    return store


def test_export_import_report_gives_the_same_bytes(tmp_path: Path) -> None:
    store = varied(tmp_path / "a")
    path = export(store, tmp_path / "runs.parquet")
    copy = Store(tmp_path / "b")
    assert import_file(copy, path) == {"imported": 8}
    for requests in (None, [*small_sweep(), experiment(norm="fn")]):
        original = text(StoreSource(store), requests)
        assert text(StoreSource(copy), requests) == original
        assert text(FilesSource([path]), requests) == original
    assert export(copy, tmp_path / "again.parquet").read_bytes() == path.read_bytes()


def test_an_imported_run_is_complete(tmp_path: Path) -> None:
    store, request = Store(tmp_path / "a"), experiment()
    finish(store, request, 0.8, probes={"drift": {"mean_norm": 1.0}})
    copy = Store(tmp_path / "b")
    import_file(copy, export(store, tmp_path / "runs.parquet"))
    assert copy.run(request.run_id).state(request).status == "done"
    assert copy.run(request.run_id).metrics() == store.run(request.run_id).metrics()
    assert copy.run(request.run_id).experiment() == request
    assert copy.claim(request, Lease.here()) is None, "no worker executes it again"
    assert copy.claim(experiment(rounds=40), Lease.here()) is not None, "but it can be extended"


def test_the_ends_of_runs_report_the_same_numbers(tmp_path: Path) -> None:
    store = varied(tmp_path / "a")
    whole, problems = transfer.export_runs(store, store.run_ids(), ends=True)
    assert problems == ()
    path = tmp_path / "ends.parquet"
    exports.write(path, whole)
    assert path.stat().st_size <= export(store, tmp_path / "all.parquet").stat().st_size
    source = FilesSource([path])
    assert text(source, small_sweep()) == text(StoreSource(store), small_sweep())
    store = Store(tmp_path / "b")
    long = experiment(rounds=80)
    finish(store, long, lines=records(range(0, 90, 10), 0.8))
    (one,), _ = transfer.export_runs(store, store.run_ids(), ends=True)
    assert [record["round"] for record in one.records] == [0, 40, 50, 60, 70, 80], "the first, and the last five"
    assert exports.Exported.from_row(one.to_row()).result.final == one.records[-1]
    exports.write(path, [one])
    sources = StoreSource(store), FilesSource([path])
    assert [collect(source).runs[0].has_curve for source in sources] == [True, False]
    for rounds, has_curve in (([16, 32, 48, 64, 80], True), ([60, 65, 70, 75, 80], False), ([0, 80], False)):
        (one,) = collect(sources[0]).runs
        assert one.result is not None
        result = replace(one.result, evaluated=frozenset(rounds))
        assert replace(one, result=result).has_curve is has_curve, rounds
    for source in sources:
        (run,) = collect(source, [long], select_by="tail").runs
        assert run.record is not None and run.last is not None and run.since == 40
        assert (run.record["acc"], run.last["acc"]) == pytest.approx((0.6, 0.8)), "the mean of 0.4 to 0.8, and the last"
        assert run.record["seconds"] == run.last["seconds"]
        assert "<sub>last 80.00" in text(source, [long], select_by="tail")
        assert "last 80.00" not in text(source, [long])


def test_runs_with_few_evaluations_fall_back_to_the_last(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), 0.6)
    (run,) = collect(StoreSource(store), select_by="tail").runs
    assert run.record is not None and run.record["acc"] == 0.6 and run.last is None


def test_files_of_the_first_layout_are_read(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    (new,) = exports.read(path)
    known = {"final": new.records[-1], "sha256": "0" * 64}
    rewrite(path, lambda row: row.update(result=canonical_json({**json.loads(row["result"]), **known})))
    assert exports.read(path) == [new]


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    path = export(varied(tmp_path / "a"), tmp_path / "runs.parquet")
    copy = Store(tmp_path / "b")
    import_file(copy, path)
    before = files_of(copy)
    assert import_file(copy, path) == {"already there": 8}
    assert files_of(copy) == before


def test_other_numbers_are_reported_and_never_overwritten(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment(), experiment(seed=1)]), tmp_path / "runs.parquet")
    other = Store(tmp_path / "b")
    finish(other, experiment(), 0.123)
    before = other.run(experiment().run_id).metrics()
    assert import_file(other, path) == {"different numbers": 1, "imported": 1}
    assert other.run(experiment().run_id).metrics() == before


@pytest.mark.parametrize(
    ("prepare", "outcome"),
    [
        pytest.param(partial(finish, status="diverged"), "different numbers", id="diverged in one store only"),
        pytest.param(partial(finish, acc=accuracy(experiment()), seconds=99.0), "already there", id="another time"),
        pytest.param(claim, "in use", id="a worker executes it"),
        pytest.param(fail, "imported", id="failed"),
    ],
)
def test_the_outcome_of_an_import_into_a_store_that_knows_the_run(
    tmp_path: Path, prepare: Callable[[Store, Experiment], object], outcome: str
) -> None:
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    other = Store(tmp_path / "b")
    prepare(other, experiment())
    assert import_file(other, path) == {outcome: 1}
    assert (other.run(experiment().run_id).state(experiment()).status == "done") == (outcome != "in use")


def test_an_import_adds_an_extension_to_the_run(tmp_path: Path) -> None:
    path = export(varied(tmp_path / "a"), tmp_path / "runs.parquet")
    other = Store(tmp_path / "b")
    finish(other, experiment(norm="fn"), lines=records([10, 20], 0.6))
    assert import_file(other, path) == {"imported": 7, "already there": 1}
    assert [result.rounds for result in other.run(experiment(norm="fn").run_id).results()] == [20, 40]


def test_private_fields_are_not_exported(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    (row,) = pq.read_table(path).to_pylist()
    assert "laptop-of-somebody" not in str(row)
    assert "/home/somebody" not in str(row)
    assert str(tmp_path) not in str(row)
    assert json.loads(row["environment"])["numpy"] == "2.2.0"


def test_damaged_metrics_are_reported(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", [experiment(), experiment(seed=1)])
    run = store.run(experiment().run_id)
    path = run.path / "attempts" / "0001" / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.6", b"0.7"))
    exported, problems = transfer.export_runs(store, store.run_ids())
    assert [one.run_id for one in exported] == [experiment(seed=1).run_id]
    assert len(problems) == 1 and run.run_id in problems[0]


def test_of_different_counts_of_images_the_smaller_one_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for seed, tested in enumerate((1000, 10**9)):
        finish(store, experiment(seed=seed), samples=(100, tested), fingerprint="0" * 16)
    (cell,) = cells_of(collect(StoreSource(store)).runs, "acc")
    assert (cell.samples, cell.images) == ("100/1000", 1000)


def test_a_result_under_the_id_of_another_experiment_is_not_imported(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    rewrite(path, lambda row: row.update(experiment=canonical_json(experiment(lr=0.5).to_json())))
    store = Store(tmp_path / "b")
    assert import_file(store, path) == {"retired": 1}
    assert list(store.run_ids()) == []
    collection = collect(FilesSource([path]))
    assert collection.runs == () and "retired" in collection.left_out[0]


def test_an_experiment_of_a_newer_version_is_left_out(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment(), experiment(seed=1)]), tmp_path / "runs.parquet")
    rewrite(path, lambda row: row.update(experiment=row["experiment"].replace('"none"', '"of-tomorrow"')))
    assert import_file(Store(tmp_path / "b"), path) == {"unreadable": 1, "imported": 1}
    assert collect(FilesSource([path])).left_out == (FORGOTTEN,)


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    first = export(filled(tmp_path / "a", [experiment()]), tmp_path / "a.parquet")
    other = Store(tmp_path / "b")
    finish(other, experiment(), 0.123)
    second = export(other, tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet: run .* has other numbers here than in an earlier file"):
        FilesSource([first, second])
    assert len(list(FilesSource([first, first]).stored_runs())) == 1


def test_exported_runs_of_a_plug_in_that_is_not_loaded_are_not_damage(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment(), experiment(seed=1)]), tmp_path / "runs.parquet")
    rewrite(path, lambda row: row.update(experiment=row["experiment"].replace('"none"', '"gone"')))
    found = CliRunner().invoke(app, ["verify", "--results", str(path)])
    assert found.exit_code == 2
    assert found.stdout == (
        "1 run not checked: its norm 'gone' is not known here; if a plug-in has it, name its file with --plugin or in "
        f"$FLBENCH_PLUGINS\n1 run in {path}: no damage found\n"
    )
