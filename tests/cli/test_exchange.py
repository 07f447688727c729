from __future__ import annotations

from pathlib import Path

import pytest

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
