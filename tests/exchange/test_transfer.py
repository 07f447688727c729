"""``flbench export`` and ``flbench import``, and exported files as a report's source."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flbench.choices import SelectBy
from flbench.config import Experiment, canonical_json
from flbench.errors import UserError
from flbench.exchange import exports
from flbench.exchange.transfer import FilesSource, export_runs
from flbench.report.runs import OTHER_NUMERICS, collect
from flbench.run_sources import Source, StoreSource
from flbench.store import Lease, Store
from flbench.sweeps import load_sweep
from tests.exchange.hostile_files import Change, export, rewrite
from tests.finished_sweep import Run
from tests.report.stores import (
    NUMERICS,
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

FN, LONGER = experiment(norm="fn"), experiment(norm="fn", rounds=40)


@pytest.fixture
def varied(tmp_path: Path) -> Store:
    """Done, diverged before the first record, extended, failed."""
    store = filled(tmp_path / "varied", small_sweep()[:5])
    finish(store, experiment(norm="gn"), status="diverged")
    finish(store, FN, lines=records([10, 20], 0.6))
    finish(store, LONGER, lines=records([10, 20], 0.6) + records([30, 40], 0.8))
    return store


def text(source: Source, requests: list[Experiment] | None = None, select_by: SelectBy = "last") -> str:
    return markdown_of(leaderboard_of(collect(source, requests, select_by=select_by), select_by=select_by))


def files_of(store: Store) -> dict[str, bytes]:
    return {str(path.relative_to(store.root)): path.read_bytes() for path in store.root.rglob("*") if path.is_file()}


def test_export_import_report_gives_the_same_bytes(run: Run, varied: Store) -> None:
    code, said = run("export", "out/all.parquet", "--store", "varied")
    assert code == 0 and said.startswith("wrote out/all.parquet: 7 runs, ")
    path, copy = Path("out/all.parquet"), Store(Path("copy"))
    assert run("import", "out/all.parquet", "--store", "copy") == (0, "8 imported\n")
    before = files_of(copy)
    assert run("import", "out/all.parquet", "--store", "copy") == (0, "8 already there\n")
    assert files_of(copy) == before
    assert list(copy.workers.iterdir()) == [], "no worker is left registered"
    assert export(copy, Path("again.parquet")).read_bytes() == path.read_bytes()
    for requests in (None, [*small_sweep(), FN]):
        original = text(StoreSource(varied), requests)
        assert text(StoreSource(copy), requests) == original
        assert text(FilesSource([path]), requests) == original
    rows = pq.read_table(path).to_pylist()
    for private in ("laptop-of-somebody", "/home/somebody", str(varied.root)):
        assert private not in str(rows)
    assert json.loads(rows[0]["environment"])["numpy"] == "2.2.0"


def test_a_spec_chooses_the_runs(run: Run) -> None:
    store = filled(Path("some"), [experiment(lr=0.5)])
    requests = load_sweep("tiny.yaml").experiments
    for request in requests[:3]:
        finish(store, request, accuracy(request))
    fail(store, requests[3])
    said = run("export", "tiny.parquet", "tiny.yaml", "--store", "some")[1]
    assert said.startswith("wrote tiny.parquet: 3 of 8 runs, ")
    chosen = ("--set", "tiny:seeds=[0]", "--only", "norm=none")
    said = run("export", "one.parquet", "tiny.yaml", *chosen, "--store", "some")[1]
    assert said.startswith("wrote one.parquet: 2 of 2 runs, ")


def test_an_imported_run_is_complete(run: Run, varied: Store, tmp_path: Path) -> None:
    store, request = Store(tmp_path / "a"), experiment()
    finish(store, request, 0.8, probes={"drift": {"mean_norm": 1.0}})
    export(store, Path("one.parquet"))
    run("import", "one.parquet", "--store", "b")
    copy = Store(Path("b"))
    before, after = store.run(request.run_id), copy.run(request.run_id)
    assert after.state(request).status == "done"
    assert (after.metrics(), after.experiment()) == (before.metrics(), request)
    assert copy.claim(request, Lease.here()) is None, "no worker executes it again"
    assert copy.claim(experiment(rounds=40), Lease.here()) is not None, "but it can be extended"
    export(varied, Path("all.parquet"))
    finish(Store(Path("c")), FN, lines=records([10, 20], 0.6))
    assert run("import", "all.parquet", "--store", "c") == (0, "1 already there, 7 imported\n")
    assert [result.rounds for result in Store(Path("c")).run(FN.run_id).results()] == [20, 40], "an extension is added"


@pytest.mark.parametrize(
    ("prepare", "outcome", "summary"),
    [
        (partial(finish, acc=0.123), "different numbers", "1 different numbers, 1 imported"),
        (partial(finish, status="diverged"), "different numbers", "1 different numbers, 1 imported"),
        (partial(finish, acc=accuracy(experiment()), seconds=99.0), "already there", "1 already there, 1 imported"),
        (claim, "in use", "1 imported, 1 in use"),
        (fail, "imported", "2 imported"),
    ],
    ids=["other numbers", "diverged in one store only", "another time", "a worker executes it", "failed"],
)
def test_an_import_into_a_store_that_knows_the_run(
    run: Run, tmp_path: Path, prepare: Callable[[Store, Experiment], object], outcome: str, summary: str
) -> None:
    export(filled(tmp_path / "a", [experiment(), experiment(seed=1)]), Path("two.parquet"))
    other, request = Store(Path("b")), experiment()
    prepare(other, request)
    before = other.run(request.run_id).metrics()
    code, said = run("import", "two.parquet", "--store", "b")
    refused = outcome in ("different numbers", "in use")
    assert code == int(refused)
    assert said.startswith(f"{summary}\n")
    assert (f"not imported: run {request.run_id} of 20 rounds: {outcome} in b\n" in said) == refused
    assert (other.run(request.run_id).state(request).status == "done") == (outcome != "in use")
    assert (other.run(request.run_id).metrics() == before) == (outcome != "imported"), "nothing is overwritten"


def test_the_ends_of_runs_report_the_same_numbers(varied: Store, tmp_path: Path) -> None:
    whole, problems = export_runs(varied, varied.run_ids(), ends=True)
    assert problems == ()
    path = tmp_path / "ends.parquet"
    exports.write(path, whole)
    assert path.stat().st_size <= export(varied, tmp_path / "all.parquet").stat().st_size
    assert text(FilesSource([path]), small_sweep()) == text(StoreSource(varied), small_sweep())
    store = Store(tmp_path / "b")
    long = experiment(rounds=80)
    finish(store, long, lines=records(range(0, 90, 10), 0.8))
    (one,), _ = export_runs(store, store.run_ids(), ends=True)
    assert [record["round"] for record in one.records] == [0, 40, 50, 60, 70, 80], "the first, and the last five"
    assert exports.Exported.from_row(one.to_row()).result.final == one.records[-1]
    exports.write(path, [one])
    sources = StoreSource(store), FilesSource([path])
    assert [collect(source).runs[0].has_curve for source in sources] == [True, False]
    for rounds, has_curve in (([16, 32, 48, 64, 80], True), ([60, 65, 70, 75, 80], False), ([0, 80], False)):
        (one_run,) = collect(sources[0]).runs
        assert one_run.result is not None
        result = replace(one_run.result, evaluated=frozenset(rounds))
        assert replace(one_run, result=result).has_curve is has_curve, rounds
    for source in sources:
        (tail,) = collect(source, [long], select_by="tail").runs
        assert tail.record is not None and tail.last is not None and tail.since == 40
        assert (tail.record["acc"], tail.last["acc"]) == pytest.approx((0.6, 0.8)), "the mean of 0.4 to 0.8, the last"
        assert tail.record["seconds"] == tail.last["seconds"]
        assert "<sub>last 80.00" in text(source, [long], select_by="tail")
        assert "last 80.00" not in text(source, [long])


CURE = "; if a plug-in has it, name its file with --plugin or in $FLBENCH_PLUGINS"
UNKNOWN = f"1 run not checked: its norm 'gone' is not known here{CURE}\n1 run in two.parquet: no damage found\n"
HASH = ": its id is not the hash of its experiment in this version of flbench\n1 run in two.parquet: 1 problem\n"


@pytest.mark.parametrize(
    ("change", "imported", "left_out", "code", "says"),
    [
        pytest.param(
            lambda row: row.update(experiment=canonical_json(experiment(lr=0.5).to_json())),
            *("1 imported, 1 retired\n", "1 run of an earlier version of a component, whose numbers are retired"),
            *(1, HASH),
            id="under the id of another experiment",
        ),
        pytest.param(
            lambda row: row.update(experiment=row["experiment"].replace('"none"', '"gone"')),
            *("1 imported, 1 unreadable\n", f"1 run with the unknown norm 'gone'{CURE}", 2, UNKNOWN),
            id="of a newer flbench or a plug-in",
        ),
    ],
)
def test_runs_that_cannot_be_used_here_are_left_out(
    run: Run, tmp_path: Path, change: Change, imported: str, left_out: str, code: int, says: str
) -> None:
    path = export(filled(tmp_path / "a", [experiment(), experiment(seed=1)]), Path("two.parquet"))
    rewrite(path, change)
    assert run("import", "two.parquet", "--store", "b") == (0, imported)
    assert len(list(Store(Path("b")).run_ids())) == 1
    collection = collect(FilesSource([path]))
    assert len(collection.runs) == 1 and collection.left_out == (left_out,)
    checked, said = run("verify", "--results", "two.parquet")
    assert checked == code and said.endswith(says)


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    store, other = filled(tmp_path / "a", [experiment(), experiment(seed=1)]), Store(tmp_path / "b")
    first = export(store, tmp_path / "a.parquet")
    finish(other, experiment(), 0.123)
    second = export(other, tmp_path / "b.parquet")
    both = FilesSource([first, second])
    with pytest.raises(UserError, match=r"b\.parquet: run .* has other numbers here than in .*a\.parquet \(first in "):
        collect(both)
    assert len(collect(both, [experiment(seed=1)]).runs) == 1, "only the runs that a report requests must agree"
    assert len(list(FilesSource([first, first]).stored_runs())) == 2
    whole = exports.read(first)
    known = {"final": whole[0].records[-1], "sha256": "0" * 64}  # as in the first layout of the file
    rewrite(first, lambda row: row.update(result=canonical_json({**json.loads(row["result"]), **known})))
    assert exports.read(first) == whole
    # A run whose metrics are damaged is named, the others are exported.
    path = store.run(experiment().run_id).path / "attempts" / "0001" / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.6", b"0.7"))
    exported, problems = export_runs(store, store.run_ids())
    assert [one.run_id for one in exported] == [experiment(seed=1).run_id]
    assert len(problems) == 1 and experiment().run_id in problems[0]


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("export x.parquet --store none", 4, "there is no store at none"),
        ("export x.csv --store empty", 2, "x.csv: expected a name that ends in .parquet"),
        ("export", 2, "flbench export: expected a name that ends in .parquet"),
        ("export x.parquet --store empty", 2, "no finished run in empty: run `flbench sweep quickstart"),
        ("export x.parquet tiny.yaml --store empty", 2, "no finished run of tiny.yaml in empty: run `flbench "),
        ("export x.parquet --by Ada", 2, "--by WHO is for contributions: name yours with --contribute NAME"),
        ("export --contribute ada x.parquet tiny.yaml", 2, "--contribute NAME takes the file of one sweep, and no"),
        ("export --contribute ada tiny.yaml --ends", 2, "--contribute NAME takes the file of one sweep, and no --ends"),
        ("contribute ada tiny.yaml", 2, "flbench contribute has become: flbench export --contribute NAME SPEC"),
        ("import absent.parquet", 2, "absent.parquet: no such file"),
        ("import tiny.yaml", 2, "tiny.yaml: not a readable parquet file"),
    ],
)
def test_mistakes_are_reported_in_one_line(run: Run, command: str, code: int, message: str) -> None:
    Store(Path("empty"))
    ended, said = run(*command.split())
    assert ended == code and f"error: {message}" in said and said.count("\n") == 1
    assert not Path("x.parquet").exists() and not Path("results").exists() and not Path("none").exists()


def test_a_result_of_earlier_code_is_superseded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two results of one run the one of the present code is exported and imported; both commands count the other."""
    for module in ("store.results", "exchange.transfer"):
        monkeypatch.setattr(f"flbench.{module}.plugins_of", lambda raw: "mine=new")
    monkeypatch.setenv("FLBENCH_STORE", "mine")
    store = Store(Path("mine"))
    twice, longer, old = (experiment(seed=seed) for seed in range(3))
    for request, *codes in ((twice, "old", "new"), (longer, "old"), (old, "older")):
        for code in codes:
            finish(store, request, 0.5 if code == "new" else 0.4, environment={"plugins": f"mine={code}"})
    finish(store, experiment(seed=1, rounds=40), 0.6, environment={"plugins": "mine=new"})
    assert len(store.run(twice.run_id).results()) == 2

    written = run("export", "now.parquet")[1]
    assert written.startswith("wrote now.parquet: 3 runs, ")
    assert written.endswith("; left out: 2 superseded results, of earlier code of a plug-in\n")
    assert len(exports.read(Path("now.parquet"))) == 3
    assert run("import", "now.parquet", "--store", "copy") == (0, "3 imported\n")

    # A file of an earlier version has both, in any order.
    everything, _ = export_runs(store, store.run_ids())
    for name, rows in (("first", everything), ("last", everything[::-1])):
        exports.write(Path(f"{name}.parquet"), rows)
        assert run("import", f"{name}.parquet", "--store", name) == (0, "3 imported, 2 superseded\n")
        (result,) = Store(Path(name)).run(twice.run_id).results()
        assert result.environment["plugins"] == "mine=new"
    assert run("import", "last.parquet", "--store", "copy") == (0, "3 already there, 2 superseded\n")


def test_files_may_have_a_run_with_different_numerics(tmp_path: Path) -> None:
    store, other = filled(tmp_path / "a", [experiment(), FN]), Store(tmp_path / "b")
    native = {**NUMERICS, "executor": "native"}
    finish(other, experiment(), 0.123, numerics=native)
    finish(other, LONGER, 0.456, numerics=native)
    files = [export(one, tmp_path / f"{one.root.name}.parquet") for one in (store, other)]
    collection = collect(FilesSource(files), [experiment(), FN, LONGER])
    found = {(run.run_id, run.rounds): run.record["acc"] for run in collection.runs if run.record}
    expected = {(experiment(), 20): accuracy(experiment()), (FN, 20): accuracy(FN), (LONGER, 40): 0.456}
    assert found == {(request.run_id, rounds): pytest.approx(acc) for (request, rounds), acc in expected.items()}
    assert collection.left_out == (OTHER_NUMERICS.format("2 runs"),)
    assert collect(FilesSource(files[:1]), [experiment(), FN]).left_out == ()


def test_losses_may_differ_by_how_they_were_added(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in "abc"]
    for store, loss in zip(stores, (0.7190326179825871, 0.7190326179825872, 0.7190326), strict=True):
        finish(store, experiment(), lines=[{**record, "loss": loss} for record in records([10, 20], 0.6)])
    first, rounded, other = (export(store, tmp_path / f"{store.root.name}.parquet") for store in stores)
    assert len(collect(FilesSource([first, rounded])).runs) == 1
    with pytest.raises(UserError, match=r"c\.parquet: run .* has other numbers here than in .*a\.parquet"):
        collect(FilesSource([first, other]))
