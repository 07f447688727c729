from __future__ import annotations

from pathlib import Path

import pytest

from flbench.exchange import exports
from flbench.exchange.transfer import export_runs
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.cli.test_report import fill, flbench, here  # noqa: F401  the fixture
from tests.report.stores import accuracy, claim, experiment, fail, filled, finish

Output = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("here")
def test_runs_are_copied_between_stores(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    fill(Path("runs"))
    assert flbench(monkeypatch, "export", "out/tiny.parquet") == 0
    assert capsys.readouterr().out.startswith("wrote out/tiny.parquet: 8 runs, ")
    assert flbench(monkeypatch, "import", "out/tiny.parquet", "--store", "copy") == 0
    assert capsys.readouterr().out == "8 imported\n"
    assert flbench(monkeypatch, "import", "out/tiny.parquet", "--store", "copy") == 0
    assert capsys.readouterr().out == "8 already there\n"
    flbench(monkeypatch, "report", "--out", "a.md")
    flbench(monkeypatch, "report", "--out", "b.md", "--store", "copy")
    parts = [Path(name).read_text().split("\n", 1)[1].partition("Regenerate")[0] for name in ("a.md", "b.md")]
    assert parts[0] == parts[1]
    assert list(Path("copy/workers").iterdir()) == [], "no worker is left registered"


@pytest.mark.usefixtures("here")
def test_a_spec_chooses_the_runs(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    store = filled(Path("runs"), [experiment(lr=0.5)])
    requests = load_sweep("tiny.yaml").experiments
    for request in requests[:3]:
        finish(store, request, accuracy(request))
    fail(store, requests[3])
    assert flbench(monkeypatch, "export", "tiny.parquet", "tiny.yaml") == 0
    assert capsys.readouterr().out.startswith("wrote tiny.parquet: 3 of 8 runs, ")
    assert (
        flbench(monkeypatch, "export", "one.parquet", "tiny.yaml", "--set", "tiny:seeds=[0]", "--only", "norm=none")
        == 0
    )
    assert capsys.readouterr().out.startswith("wrote one.parquet: 2 of 2 runs, ")


@pytest.mark.usefixtures("here")
def test_different_numbers_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    fill(Path("runs"))
    flbench(monkeypatch, "export", "tiny.parquet")
    other = Store(Path("other"))
    first, second = load_sweep("tiny.yaml").experiments[:2]
    finish(other, first, 0.123)
    claim(other, second)
    capsys.readouterr()
    assert flbench(monkeypatch, "import", "tiny.parquet", "--store", "other") == 1
    said = capsys.readouterr()
    assert said.out == "1 different numbers, 6 imported, 1 in use\n"
    assert f"not imported: run {first.run_id} of 20 rounds: different numbers in other" in said.err
    assert f"not imported: run {second.run_id} of 20 rounds: in use in other" in said.err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["export", "x.parquet"], 4, "there is no store at runs"),
        (["export", "x.csv", "--store", "empty"], 2, "x.csv: expected a name that ends in .parquet"),
        (
            ["export", "x.parquet", "--store", "empty"],
            2,
            "no finished run in empty: run `flbench sweep sweeps/quickstart",
        ),
        (
            ["export", "x.parquet", "tiny.yaml", "--store", "empty"],
            2,
            "no finished run of tiny.yaml in empty: run `flbench ",
        ),
        (["import", "absent.parquet"], 2, "absent.parquet: no such file"),
        (["import", "tiny.yaml"], 2, "tiny.yaml: not a readable parquet file"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, words: list[str], code: int, message: str
) -> None:
    Store(Path("empty"))
    assert flbench(monkeypatch, *words) == code
    error = capsys.readouterr().err
    assert f"error: {message}" in error and error.count("\n") == 1
    assert not Path("x.parquet").exists() and not Path("runs").exists()


@pytest.mark.usefixtures("here")
def test_a_result_of_earlier_code_is_superseded(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """Of two results of one run the one of the present code is exported and imported; both commands count the other."""
    for module in ("store.results", "exchange.transfer"):
        monkeypatch.setattr(f"flbench.{module}.plugins_of", lambda raw: "mine=new")
    store = Store(Path("runs"))
    twice, longer, old = (experiment(seed=seed) for seed in range(3))
    for request, *codes in ((twice, "old", "new"), (longer, "old"), (old, "older")):
        for code in codes:
            finish(store, request, 0.5 if code == "new" else 0.4, environment={"plugins": f"mine={code}"})
    finish(store, experiment(seed=1, rounds=40), 0.6, environment={"plugins": "mine=new"})
    assert len(store.run(twice.run_id).results()) == 2

    assert flbench(monkeypatch, "export", "now.parquet") == 0
    written = capsys.readouterr().out
    assert written.startswith("wrote now.parquet: 3 runs, ")
    assert written.endswith("; left out: 2 superseded results, of earlier code of a plug-in\n")
    assert len(exports.read(Path("now.parquet"))) == 3
    assert flbench(monkeypatch, "import", "now.parquet", "--store", "copy") == 0
    assert capsys.readouterr().out == "3 imported\n"

    # A file of an earlier version has both, in any order.
    everything, _ = export_runs(store, store.run_ids())
    for name, rows in (("first", everything), ("last", everything[::-1])):
        exports.write(Path(f"{name}.parquet"), rows)
        assert flbench(monkeypatch, "import", f"{name}.parquet", "--store", name) == 0
        assert capsys.readouterr().out == "3 imported, 2 superseded\n"
        (result,) = Store(Path(name)).run(twice.run_id).results()
        assert result.environment["plugins"] == "mine=new"
    assert flbench(monkeypatch, "import", "last.parquet", "--store", "copy") == 0
    assert capsys.readouterr().out == "3 already there, 2 superseded\n"
