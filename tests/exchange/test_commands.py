"""``flbench export`` and ``flbench import``."""

from __future__ import annotations

from pathlib import Path

import pytest

from flbench.exchange import exports
from flbench.exchange.transfer import export_runs
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.exchange.conftest import Run
from tests.report.stores import accuracy, claim, experiment, fail, filled, finish


def test_runs_are_copied_between_stores(run: Run) -> None:
    code, said = run("export", "out/tiny.parquet")
    assert code == 0 and said.startswith("wrote out/tiny.parquet: 8 runs, ")
    assert run("import", "out/tiny.parquet", "--store", "copy") == (0, "8 imported\n")
    assert run("import", "out/tiny.parquet", "--store", "copy") == (0, "8 already there\n")
    run("report", "--out", "a.md")
    run("report", "--out", "b.md", "--store", "copy")
    parts = [Path(name).read_text().split("\n", 1)[1].partition("Regenerate")[0] for name in ("a.md", "b.md")]
    assert parts[0] == parts[1]
    assert list(Path("copy/workers").iterdir()) == [], "no worker is left registered"


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


def test_different_numbers_are_reported(run: Run) -> None:
    run("export", "tiny.parquet")
    other = Store(Path("other"))
    first, second = load_sweep("tiny.yaml").experiments[:2]
    finish(other, first, 0.123)
    claim(other, second)
    code, said = run("import", "tiny.parquet", "--store", "other")
    assert code == 1 and said.startswith("1 different numbers, 6 imported, 1 in use\n")
    assert f"not imported: run {first.run_id} of 20 rounds: different numbers in other" in said
    assert f"not imported: run {second.run_id} of 20 rounds: in use in other" in said


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("export x.parquet --store none", 4, "there is no store at none"),
        ("export x.csv --store empty", 2, "x.csv: expected a name that ends in .parquet"),
        ("export", 2, "flbench export: expected a name that ends in .parquet"),
        ("export x.parquet --store empty", 2, "no finished run in empty: run `flbench sweep sweeps/quickstart"),
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
