from __future__ import annotations

import hashlib
import json
import re
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
    rewrite(path, _in_result(final=new.records[-1], sha256="0" * 64), sign=True)
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


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], *, sign: bool) -> None:
    """Change the first row of a file, and recompute its checksum, as an attacker would."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows[0])
    if sign:
        rows[0]["sha256"] = exports._checksum(rows[0])
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def _in_result(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda row: row.update(result=canonical_json({**json.loads(row["result"]), **changes}))


def _in_metrics(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    """Change the last record, and the checksum and the size in the result."""

    def change(row: dict[str, Any]) -> None:
        head, newline, last = row["metrics"].rstrip("\n").rpartition("\n")
        assert old in last, last
        row["metrics"] = f"{head}{newline}{last.replace(old, new)}\n"
        data = row["metrics"].encode()
        _in_result(metrics_sha256=hashlib.sha256(data).hexdigest(), metrics_bytes=len(data))(row)

    return change


def _with_samples(samples: object, **changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        facts = {**json.loads(row["result"])["environment"], "samples": samples}
        _in_result(environment=facts, **changes)(row)

    return change


def _repeated_rounds(row: dict[str, Any]) -> None:
    """Repeat the first evaluation: a mean of the last evaluations would count it twice."""
    data = (row["metrics"].splitlines(keepends=True)[0] + row["metrics"]).encode()
    row["metrics"] = data.decode()
    _in_result(metrics_sha256=hashlib.sha256(data).hexdigest(), metrics_bytes=len(data))(row)


#: Each field of a result or of its records that a report computes with.
DAMAGE = {
    "one count of images": (_with_samples("360"), True, "samples: expected two counts of images"),
    "counts that are words": (_with_samples("a/b"), True, "samples: expected two counts of images"),
    "counts of thousands of digits": (_with_samples(f"1/{'9' * 5000}"), True, "samples: expected two counts"),
    "no test images": (_with_samples("1442/0"), True, "samples: expected two counts of images"),
    "counts that are a number": (_with_samples(360), True, "samples: expected two counts of images"),
    "more test images than the official data have": (
        _with_samples("1442/355000000", fingerprint="e3713c9c6ae47b99"),
        True,
        "it names 1442/355000000 images in train and test, its data set has 1442/355",
    ),
    "an accuracy above 1": (_in_metrics('"acc":0.6', '"acc":1.5'), True, "acc: expected 0 to 1, got 1.5"),
    "an accuracy below 0": (_in_metrics('"acc":0.6', '"acc":-0.5'), True, "acc: expected 0 to 1, got -0.5"),
    "recall above 1": (_in_metrics('"recall":[0.6,null]', '"recall":[7,null]'), True, "recall: expected 0 to 1, got 7"),
    "a client's accuracy above 1": (_in_metrics('"clients":[0.6', '"clients":[6'), True, "clients: expected 0 to 1"),
    "negative times": (_in_metrics('"seconds":', '"seconds":-'), True, "seconds: expected 0 to inf"),
    "negative bytes": (_in_metrics('"acc":0.6', '"bytes_up":-9,"acc":0.6'), True, "bytes_up: expected 0 to inf"),
    "evaluations twice": (_repeated_rounds, True, "the rounds of its metrics do not ascend"),
    "an attempt that is no number": (_in_result(attempt="x"), True, "attempt: "),
    "a round that is no number": (_in_metrics('"round":20', '"round":"x"'), True, "round: expected a whole number"),
    "a fingerprint that is no text": (_in_result(fingerprint=7), True, "fingerprint: "),
    "a date that is no text": (_in_result(published=7), True, "published: "),
    "probes that are no texts": (_in_result(probes=[7]), True, "probes"),
    "thousands of facts": (_in_result(numerics=dict.fromkeys(map(str, range(1000)), 1)), True, "at most 100 facts"),
    "a flipped number": (lambda row: row.update(metrics=row["metrics"].replace("0.6", "0.7")), False, "checksum"),
    "other metrics, signed": (
        lambda row: row.update(metrics=row["metrics"].replace("0.6", "0.7")),
        True,
        "its metrics",
    ),
    "a path as run id": (lambda row: row.update(run_id="../../../../etc"), True, "its run id is none"),
    "another run's result": (lambda row: row.update(run_id="0" * 16), True, "belongs to run"),
    "a path as rounds": (_in_result(rounds="../../x"), True, "cannot be used"),
    "negative rounds": (_in_result(rounds=-1), True, "rounds: Input should be greater than or equal to 0"),
    "more rounds than fit": (_in_result(rounds=10**19, wanted=10**19), True, "rounds: "),
    "a text as an accuracy": (_in_metrics('"acc":0.6', '"acc":"x"'), True, "acc: expected a number, got 'x'"),
    "a text as recall": (
        _in_metrics('"recall":[0.6,null]', '"recall":"x"'),
        True,
        "recall: expected a list of numbers",
    ),
    "texts in recall": (
        _in_metrics('"recall":[0.6,null]', '"recall":["x"]'),
        True,
        "recall: expected a list of numbers",
    ),
    "a number that overflows": (_in_metrics('"acc":0.6', '"acc":1e999'), True, "metrics"),
    "probes that are a list": (_in_metrics('"acc":0.6', '"probes":[1],"acc":0.6'), True, "probes: expected a mapping"),
    "an infinite version": (lambda row: row.update(environment='{"python":1e400}'), True, "no finite number"),
    "a lone surrogate": (lambda row: row.update(environment='{"cpu":"\\ud800"}'), True, "surrogates not allowed"),
    "nested settings": (_in_result(numerics={"device": ["cpu"]}), True, "numerics: "),
    "negative seconds": (_in_result(seconds=-1), True, "seconds: "),
    "evaluated later than it ended": (_in_result(rounds=10), True, "rounds: "),
    "an unknown status": (_in_result(status="perfect"), True, "cannot be used"),
    "an invented record": (_in_result(final={"round": 20, "acc": 1.0}), True, "last record"),
    "an invented evaluation": (_in_result(evaluated=[5, 10, 20]), True, "lack evaluations"),
    "an unknown key": (_in_result(path="/etc/passwd"), True, "path: missing, or unknown"),
    "no JSON": (lambda row: row.update(result="{"), True, "cannot be used"),
    "a list as experiment": (lambda row: row.update(experiment="[]"), True, "experiment: expected an object"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_rows_are_refused(tmp_path: Path, damage: str) -> None:
    change, sign, message = DAMAGE[damage]
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    rewrite(path, change, sign=sign)
    with pytest.raises(UserError, match=re.escape(message)):
        exports.read(path)


FORGED = [("360", "samples: expected two counts"), ("1442/355000000", "its data set has 1442/355")]


@pytest.mark.parametrize(("samples", "says"), FORGED)
def test_verify_and_report_agree_on_forged_counts_of_images(
    tmp_path: Path, samples: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``verify`` calls sound has the interval of the data set; what it does not, ``report`` does not use."""
    monkeypatch.chdir(tmp_path)
    official = "e3713c9c6ae47b99"
    store = Store(tmp_path / "store")
    for seed in range(3):
        finish(store, experiment(seed=seed), 0.7 + 0.05 * seed, fingerprint=official, samples=(1442, 355))
    sound = export(store, tmp_path / "sound.parquet")
    forged = tmp_path / "forged.parquet"
    forged.write_bytes(sound.read_bytes())
    rewrite(forged, _with_samples(samples), sign=True)
    checked = CliRunner().invoke(app, ["verify", "--results", "forged.parquet"])
    assert checked.exit_code == 1 and says in checked.output
    assert isinstance(CliRunner().invoke(app, ["report", "--json", "--results", "forged.parquet"]).exception, UserError)
    # The same in a store, with its checksum.
    interval = cells_of(collect(StoreSource(store)).runs, "acc")[0].half_width
    (path,) = (store.run(experiment().run_id).path / "results").iterdir()
    raw = json.loads(path.read_bytes())
    del raw["sha256"]
    raw["environment"]["samples"] = samples
    body = canonical_json(raw).encode()
    path.write_bytes(body[:-1] + b',"sha256":"%b"}\n' % hashlib.sha256(body).hexdigest().encode())
    checked = CliRunner().invoke(app, ["verify", "store"])
    assert checked.exit_code == 1 and says in checked.output
    (cell,) = cells_of(collect(StoreSource(store)).runs, "acc")
    assert cell.half_width == interval if len(cell.values) == 3 else len(cell.values) == 2


def test_of_different_counts_of_images_the_smaller_one_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for seed, tested in enumerate((1000, 10**9)):
        finish(store, experiment(seed=seed), samples=(100, tested), fingerprint="0" * 16)
    (cell,) = cells_of(collect(StoreSource(store)).runs, "acc")
    assert (cell.samples, cell.images) == ("100/1000", 1000)


def test_a_result_under_the_id_of_another_experiment_is_not_imported(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    rewrite(path, lambda row: row.update(experiment=canonical_json(experiment(lr=0.5).to_json())), sign=True)
    store = Store(tmp_path / "b")
    assert import_file(store, path) == {"retired": 1}
    assert list(store.run_ids()) == []
    collection = collect(FilesSource([path]))
    assert collection.runs == () and "retired" in collection.left_out[0]


def test_an_experiment_of_a_newer_version_is_left_out(tmp_path: Path) -> None:
    path = export(filled(tmp_path / "a", [experiment(), experiment(seed=1)]), tmp_path / "runs.parquet")
    rewrite(path, lambda row: row.update(experiment=row["experiment"].replace('"none"', '"of-tomorrow"')), sign=True)
    assert import_file(Store(tmp_path / "b"), path) == {"unreadable": 1, "imported": 1}
    assert collect(FilesSource([path])).left_out == (FORGOTTEN,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "not a readable parquet file"),
        (b"PAR1 not really PAR1", "not a readable parquet file"),
        ("cut", "not a readable parquet file"),
        ("foreign", "not one written by `flbench export`"),
        ("digits", "not one written by `flbench export`"),
        ("newer", "written by a newer flbench (schema 3, this one reads 2)"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    path = export(filled(tmp_path / "a", [experiment()]), tmp_path / "runs.parquet")
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "foreign":
        pq.write_table(pa.table({"x": [1]}), path)
    else:
        version = "3" if content == "newer" else "9" * 5000
        pq.write_table(pq.read_table(path).replace_schema_metadata({"flbench.schema": version}), path)
    with pytest.raises(UserError, match=re.escape(message)):
        exports.read(path)


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
    rewrite(path, lambda row: row.update(experiment=row["experiment"].replace('"none"', '"gone"')), sign=True)
    found = CliRunner().invoke(app, ["verify", "--results", str(path)])
    assert found.exit_code == 2
    assert found.stdout == (
        "1 run not checked: its norm 'gone' is not known here; if a plug-in has it, name its file with --plugin or in "
        f"$FLBENCH_PLUGINS\n1 run in {path}: no damage found\n"
    )


def test_a_file_that_needs_more_memory_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: object) -> None:
        raise pa.lib.ArrowMemoryError("malloc of size 9 failed")

    monkeypatch.setattr(exports, "unpacked", crowded)
    (path := tmp_path / "large.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"large\.parquet: its rows need more memory than is free here"):
        exports.read(path)
