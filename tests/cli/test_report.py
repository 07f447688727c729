from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from flbench.cli import main
from flbench.exchange import exports, transfer
from flbench.papers import papers
from flbench.report.output import write_leaderboard
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.report.stores import accuracy, experiment, filled, finish, leaderboard_of, markdown_of, records, unfolded_of

SPEC = """
version: 1
name: tiny
base: {rounds: 20, eval_every: 10}
axes: {norm: [none, ln], partition: ["classes:1", "iid"]}
seeds: [0, 1]
report: {rows: [norm], cols: [partition]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a sweep file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FLBENCH_STORE", raising=False)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    return tmp_path


def flbench(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["flbench", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def fill(store: Path, rounds: int = 20) -> Store:
    there = Store(store)
    for request in load_sweep("tiny.yaml", [f"rounds={rounds}"]).experiments:
        finish(there, request, accuracy(request))
    return there


def test_a_spec_becomes_a_leaderboard(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml") == 0
    text = Path("tiny.md").read_text()
    assert text.startswith("# tiny\n")
    assert "| norm | iid | classes:1 |" in text
    assert f"- Spec: tiny `{load_sweep('tiny.yaml').spec_hash}`" in text
    assert text.endswith("```sh\nflbench report tiny.yaml\n```\n")
    said = capsys.readouterr().out
    assert "60.50 n=2" in said and "wrote tiny.md" in said


def test_a_damaged_result_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = fill(here / "runs")
    next((here / "runs").rglob("results/*.json")).write_text("{bad")
    assert flbench(monkeypatch, "report", "tiny.yaml") == 0
    (aside,) = store.quarantine.iterdir()
    assert caplog.messages == [f"a damaged file was set aside: {str(aside.relative_to(here))!r}"]
    assert "1/2: 1 pending" in Path("tiny.md").read_text()


def test_a_file_that_is_no_report_is_not_overwritten(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "runs")
    for name in ("leaderboard.md", "notes.md"):
        Path(name).write_text("# Notes\n")
    assert flbench(monkeypatch, "report", "tiny.yaml") == 0  # writes tiny.md
    assert flbench(monkeypatch, "report", "tiny.yaml", "--out", "notes.md") == 2
    assert [Path(name).read_text() for name in ("leaderboard.md", "notes.md")] == ["# Notes\n"] * 2


def test_the_sweep_writes_the_same_bytes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(here / "runs")
    write_leaderboard(store, [load_sweep(here / "tiny.yaml")], here / "beside" / "leaderboard.md", papers())
    flbench(monkeypatch, "report", "tiny.yaml")
    assert Path("tiny.md").read_bytes() == Path("beside/leaderboard.md").read_bytes()


def test_the_command_in_a_leaderboard_reproduces_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "runs")
    flbench(
        monkeypatch,
        "report",
        str(here / "tiny.yaml"),
        "--set",
        "axes.norm=[ln]",
        "--only",
        "partition=iid",
        "--metric",
        "loss",
    )
    text = Path("tiny.md").read_text()
    command = text.split("```sh\n")[1].split("\n")[0]
    assert command == "flbench report tiny.yaml --set 'axes.norm=[ln]' --only partition=iid --metric loss"
    assert "`loss`: cross-entropy" in text and "classes:1" not in text


def test_a_change_of_one_of_two_sweeps(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "runs")
    Path("other.yaml").write_text(SPEC.replace("tiny", "other").replace("iid", "classes:2"))
    for request in load_sweep("other.yaml", ["rounds=40"]).experiments:
        finish(Store(here / "runs"), request, accuracy(request))
    flbench(
        monkeypatch,
        "report",
        "tiny.yaml",
        "other.yaml",
        "--out",
        "both.md",
        "--set",
        "other:rounds=40",
        "--set",
        "seeds=[0]",
    )
    text = Path("both.md").read_text()
    assert "- Rounds: 20, 40\n- " in text and "incomplete" not in text
    assert "flbench report tiny.yaml other.yaml --set 'seeds=[0]' --set other:rounds=40 --out both.md\n" in text


def test_without_a_spec_everything_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(here / "elsewhere", [experiment(), experiment(lr=0.5)])
    assert flbench(monkeypatch, "report", "--store", "elsewhere", "--out", "sub/board.md") == 0
    text = Path("sub/board.md").read_text()
    assert "2 training runs on digits" in text and "the best lr" not in text and "In `--html`: All 2 cells" in text
    assert not Path("tiny.md").exists()


def test_csv_and_figures(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", "--csv", "out/runs.csv", "--figures", "out/figures") == 0
    said = "wrote tiny.md, out/runs.csv, 3 figures in out/figures (SVG and PNG)\n"
    assert capsys.readouterr().out.endswith(said)
    with Path("out/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["partition"] for row in rows} == {"iid", "classes:1"}
    names = ["curves-digits-mlp", "labels-digits-classes-1-10-clients", "labels-digits-iid-10-clients"]
    files = sorted(path.name for path in Path("out/figures").iterdir())
    assert files == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    text = Path("tiny.md").read_text()
    assert (
        "\n\n![digits, mlp: accuracy (%) over rounds, mean ± sd over seeds.](out/figures/curves-digits-mlp.svg)\n"
        in text
    )
    assert "```sh\nflbench report tiny.yaml --csv out/runs.csv --figures out/figures\n```" in text


def test_the_page_has_its_figures_inside(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", "--html", "page.html") == 0
    assert Path("page.html").read_text().count("<svg role=") == 3
    assert "![" not in Path("tiny.md").read_text(), "their files are gone"
    assert sorted(path.name for path in here.iterdir()) == ["page.html", "runs", "tiny.md", "tiny.yaml"]


@pytest.mark.parametrize(
    ("option", "ending"), [("--html", ".html"), ("--csv", ".csv"), ("--figures", ""), ("--out", ".md")]
)
def test_files_that_cannot_be_written_are_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, ending: str
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", option, f"tiny.yaml/inside{ending}") == 2
    assert "error: cannot write tiny.yaml" in capsys.readouterr().err


def test_an_unknown_hyper_parameter_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "--tune", "lrr") == 2
    assert "cannot lay out a leaderboard by 'lrr': unknown field 'lrr'" in capsys.readouterr().err


def test_the_rules_are_options(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "runs")
    options = ["--select-by", "oracle", "--tune", "lr", "--tune", "E", "--target", "0.55"]
    assert flbench(monkeypatch, "report", "tiny.yaml", *options) == 0
    text = Path("tiny.md").read_text()
    assert "an upper bound and no result" in text and "Target: 55.00" in text
    assert f"flbench report tiny.yaml {' '.join(options)}\n" in text


def test_json(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", "--json") == 0
    out = capsys.readouterr().out
    assert [cell["n"] for cell in json.loads(out)["cells"]] == [2, 2, 2, 2]
    assert not Path("tiny.md").exists()


def test_exported_files_are_a_source(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(here / "runs")
    (here / "results").mkdir()
    exports.write(here / "results" / "tiny.parquet", transfer.export_runs(store, store.run_ids())[0])
    flbench(monkeypatch, "report", "tiny.yaml", "--out", "a.md")
    flbench(monkeypatch, "report", "tiny.yaml", "--out", "b.md", "--results", "results")
    flbench(monkeypatch, "report", "tiny.yaml", "--out", "c.md", "--results", "results/tiny.parquet")
    tables = [Path(name).read_text().partition("Regenerate")[0] for name in ("a.md", "b.md", "c.md")]
    assert tables[0] == tables[1] == tables[2]
    assert "flbench report tiny.yaml --results results --out b.md\n" in Path("b.md").read_text()


def test_the_command_loads_the_same_plug_ins(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_PLUGINS", "")
    fill(here / "runs")
    (here / "plugins").mkdir()
    (here / "plugins" / "my_file.py").write_text('"""Registers nothing."""\n')
    for _ in range(2):  # the second replaces what the first has written
        assert flbench(monkeypatch, "--plugin", "plugins/my_file.py", "report", "tiny.yaml", "--out", "a.md") == 0
    assert "flbench --plugin plugins/my_file.py report tiny.yaml --out a.md\n" in Path("a.md").read_text()


def test_an_extended_store_serves_old_and_new_requests(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(here / "runs")
    flbench(monkeypatch, "report", "tiny.yaml", "--out", "before.md")
    for request in load_sweep("tiny.yaml", ["rounds=40"]).experiments:
        finish(store, request, lines=records([10, 20], accuracy(request)) + records([30, 40], 0.99))
    flbench(monkeypatch, "report", "tiny.yaml", "--out", "after.md")
    flbench(monkeypatch, "report", "tiny.yaml", "--out", "long.md", "--set", "rounds=40")
    assert Path("before.md").read_text() == Path("after.md").read_text().replace("after.md", "before.md")
    assert "99.00" in Path("long.md").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["report"], 4, "there is no store at runs; `flbench sweep` makes one, --store DIR names another"),
        (
            ["report", "--store", "empty"],
            2,
            "nothing to report in empty: run `flbench sweep sweeps/quickstart.yaml` first",
        ),
        (["report", "absent.yaml"], 2, "absent.yaml: no such file"),
        (["report", "--results", "absent.parquet"], 2, "absent.parquet: no such file"),
        (["report", "--results", "empty"], 2, "no exported runs (*.parquet) in empty; `flbench export` writes them"),
        (["report", "--results", "tiny.yaml"], 2, "tiny.yaml: not a readable parquet file"),
        (["report", "--store", "full", "--metric", "f1"], 2, "unknown metric 'f1'; known: "),
        (
            ["report", "--store", "full", "--metric", "accuracy"],
            2,
            "unknown metric 'accuracy'; did you mean 'acc'? known",
        ),
        (
            ["report", "--store", "full", "--target", "90"],
            2,
            "target of acc: expected a share of at most 1, got 90; one",
        ),
        (
            ["report", "tiny.yaml", "--store", "full", "--set", "report={metric: loss, margin: 2}", "--metric", "acc"],
            2,
            "margin of acc: expected a share below 1, got 2; one point is 0.01",
        ),
        (["report", "--store", "full", "--metric", "val_acc"], 2, "no run records 'val_acc': set val_fraction, "),
        (
            ["report", "--store", "full", "--set", "rounds=3"],
            2,
            "--set, --only and --limit change a sweep: name its file",
        ),
        (
            ["report", "tiny.yaml", "--set", "tyni:rounds=3"],
            2,
            "--set tyni:rounds=3: unknown sweep file 'tyni'; did you mean 'tiny'? known: tiny",
        ),
        (
            ["report", "tiny.yaml", "--set", "tiny:round=3"],
            2,
            "--set tiny:round=3: unknown path 'round'; did you mean 'rounds'?",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    Store(here / "empty")
    filled(here / "full", [experiment()])
    assert flbench(monkeypatch, *words) == code
    error = capsys.readouterr().err
    assert f"error: {message}" in error and error.count("\n") == 1
    assert list(here.glob("*.md")) == []


@pytest.mark.slow
def test_hundreds_of_cells(tmp_path: Path) -> None:
    requests = [experiment(lr=lr / 1000, seed=seed) for lr in range(1, 201) for seed in range(2)]
    board = leaderboard_of(collect(StoreSource(filled(tmp_path, requests))))
    assert "In `--html`: All 200 cells" in markdown_of(board)
    text = unfolded_of(board)
    assert text.count("n=2, no interval") == 201, "each, and the best one in a table of its own"


def test_published_numbers_on_request(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml") == 0
    assert "Published numbers" not in Path("tiny.md").read_text()  # nothing was published for digits
    capsys.readouterr()
    assert flbench(monkeypatch, "report", "tiny.yaml", "--published", "--tolerance", "2.5") == 0
    text = Path("tiny.md").read_text()
    assert "365 published numbers: not run 365." in text
    assert "at most 2.5 points to either side" in text
    assert text.endswith("```sh\nflbench report tiny.yaml --published --tolerance 2.5\n```\n")
    assert "published numbers: not run 365" in capsys.readouterr().out
    assert flbench(monkeypatch, "report", "tiny.yaml", "--tolerance", "-1") == 2


def test_published_numbers_appear_beside_runs_at_their_settings(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(here / "runs")
    finish(store, experiment(dataset="cifar10", model="cnn", norm="ln", lr=0.3), 0.5)
    assert flbench(monkeypatch, "report") == 0
    assert "published numbers" not in (Path("runs.md").read_text() + capsys.readouterr().out).lower()
    for seed in range(3):
        finish(store, experiment(dataset="cifar10", model="cnn", norm="ln", seed=seed), 0.5 + 0.01 * seed)
    assert flbench(monkeypatch, "report") == 0
    text = Path("runs.md").read_text()
    assert "### Published numbers" in text
    assert (
        "| FedLN | 14 | fedavg, ln | 77.21 ± 0.85 | 51.00 ± 2.67<br><sub>n=3</sub> | 20 | -26.21 | inconclusive" in text
    )
    assert "inconclusive (shorter: 20 of 10,000 rounds)" in text
    before = text.encode()
    assert flbench(monkeypatch, "report") == 0
    assert Path("runs.md").read_bytes() == before


@pytest.mark.slow
def test_why_is_shown_on_request(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(here / "runs")
    probes = {"features": {"norm": 2.0, "rank": 3.0, "first_share": 0.5, "singular": [2.0, 1.0], "head_norms": [1.0]}}
    for request in load_sweep("tiny.yaml", ["probes={features: 10}"]).experiments:
        finish(store, request, accuracy(request), probes=probes)
    words = ["report", "tiny.yaml", "--set", "probes={features: 10}", "--why"]
    assert flbench(monkeypatch, *words, "--figures", "figures") == 0
    text = Path("tiny.md").read_text()
    why = text[text.index("\n## Why\n") : text.index("## How to read this")]
    assert "**Accuracy follows the rank of the features: inconclusive.**" in why
    assert "](figures/features-digits-mlp-fedavg" in why and "why-digits-mlp.svg" not in why
    assert text.partition("\n## digits, mlp\n")[0].count("](figures/why-digits-mlp.svg)") == 1
    assert "tiny.yaml --set 'probes={features: 10}' --figures figures --why\n" in text
    assert "Accuracy follows the rank of the features: inconclusive" in capsys.readouterr().out
    assert flbench(monkeypatch, *words, "--json") == 0
    (plain,) = json.loads(capsys.readouterr().out)["why"]
    assert plain["runs_with_probes"] == 8 and plain["cells"][0]["growth"] == 1.0


def test_why_without_probes_says_how_to_measure_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", "--why") == 0
    assert "No finished run recorded probes" in Path("tiny.md").read_text()


def test_report_options_apply_to_their_own_sweep(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(here / "runs")
    Path("rates.yaml").write_text("""
version: 1
name: rates
base: {rounds: 20, eval_every: 10, partition: iid}
axes: {norm: [none, ln], lr: [0.01, 0.1]}
seeds: [0, 1]
report: {rows: [norm], tune: []}
""")
    Path("best.yaml").write_text("""
version: 1
name: best
base: {rounds: 40, eval_every: 10, partition: iid}
axes: {norm: [none, ln], lr: [0.01, 0.1]}
seeds: [0, 1]
report: {rows: [norm], metric: loss, target: 0.5}
""")
    for name in ("rates.yaml", "best.yaml"):
        for request in load_sweep(name).experiments:
            finish(store, request, 0.5 + request.lr if request.norm.name == "none" else 0.9 - request.lr)  # type: ignore[union-attr]
    texts = []
    for order in (("rates.yaml", "best.yaml"), ("best.yaml", "rates.yaml")):
        flbench(monkeypatch, "report", *order, "--out", "board.md")
        texts.append(Path("board.md").read_text())
        rates = texts[-1].partition("\n### digits, mlp (rates)\n")[2].partition("\n### ")[0]
        best = texts[-1].partition("\n### digits, mlp (best)\n")[2].partition("\n### ")[0]
        assert "| norm | lr 0.01<br>iid | lr 0.1<br>iid |" in rates and "best of" not in rates
        assert "#### Best lr of each row" in best and "lr 0.1, best of 2" in best and "Target: 0.5," in best
    assert "- Runs: 16, 16 finished" in texts[0]
    flbench(monkeypatch, "report", "rates.yaml", "best.yaml", "--out", "board.md", "--tune", "lr", "--metric", "acc")
    rates = Path("board.md").read_text().partition("\n### digits, mlp (rates)\n")[2].partition("\n### ")[0]
    assert "lr 0.1, best of 2" in rates, "an option of the command replaces that of every sweep"


def test_another_report_is_not_replaced(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(here / "runs")
    for name in ("notes.md", "other.md", "page.html"):
        Path(name).write_text("# Notes on tiny\n")
    Path("other.yaml").write_text(SPEC.replace("tiny", "other"))
    assert flbench(monkeypatch, "report", "other.yaml", "--out", "other.md", "--force", "--csv", "a.csv") == 0
    Path("mine.bib").write_text("@misc{mine}\n")
    before = {path: path.read_bytes() if path.is_file() else None for path in here.iterdir()}
    capsys.readouterr()
    for words, message in (
        (
            ["--out", "notes.md"],
            "notes.md is no report, and this one is on tiny: name another file, or replace",
        ),
        (["--out", "other.md"], "other.md is a report on other, and this one is on tiny"),
        (["--html", "page.html", "--csv", "new.csv"], "page.html is no report"),
        (["--out", "other.md", "--latex", "tex", "--bibtex", "b.bib"], "other.md is a report on other"),
        (
            ["--out", "other.md", "--csv", "b.csv", "--html", "b.html", "--figures", "f"],
            "other.md is a report on other",
        ),
        (["--bibtex", "mine.bib", "--csv", "b.csv", "--latex", "tex"], "mine.bib is no report"),
    ):
        assert flbench(monkeypatch, "report", "tiny.yaml", *words) == 2
        assert f"error: {message}" in capsys.readouterr().err
    after = {path: path.read_bytes() if path.is_file() else None for path in here.iterdir()}
    assert after == before, "nothing is written"
    for _ in range(2):
        again = ["--only", "partition=iid", "--html", "new.html", "--out", "notes.md"]
        assert flbench(monkeypatch, "report", "tiny.yaml", *again, *(["--force"] if _ == 0 else [])) == 0
    assert Path("notes.md").read_text().startswith("# tiny\n") and "<title>tiny<" in Path("new.html").read_text()
    assert "--force" not in Path("notes.md").read_text()
    assert flbench(monkeypatch, "report", "other.yaml", "--html", "new.html") == 2, "a page has a title, too"
    for _ in range(2):
        assert flbench(monkeypatch, "report", "tiny.yaml", "--out", "first.md", "--details", "pages") == 0
    assert flbench(monkeypatch, "report", "other.yaml", "--out", "first.md") == 2, "a first page has a title, too"
    capsys.readouterr()
    assert flbench(monkeypatch, "report", "tiny.yaml", "--out", "new/provenance.md", "--details", "new") == 2
    assert "new/provenance.md is one of the pages of details" in capsys.readouterr().err and not Path("new").exists()


def test_a_report_is_named_after_its_sweeps_files_or_store(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(here / "runs")
    exports.write(here / "exported.parquet", transfer.export_runs(store, store.run_ids())[0])
    Path("other.yaml").write_text(SPEC.replace("tiny", "other"))
    for words, name in (
        (["tiny.yaml", "other.yaml"], "tiny-and-1-more.md"),
        ([], "runs.md"),
        (["exported.parquet"], "exported.md"),
        (["--results", "exported.parquet"], "exported.md"),
        (["--store", str(here / "runs"), "other.yaml"], "other.md"),
    ):
        assert flbench(monkeypatch, "report", *words) == 0
        assert Path(name).exists(), name
    assert Path("runs.md").read_text().startswith("# flbench leaderboard: runs\n")


def test_the_command_at_the_end_repeats_every_option(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(here / "elsewhere")
    options = (
        "--store elsewhere --out a.md --html b.html --csv c.csv --metric loss --select-by oracle --tune lr --tune E"
    )
    options += " --target 0.30000001 --published --tolerance 2.5 --why --data images"
    assert flbench(monkeypatch, "report", "tiny.yaml", *options.split(), "--set", "seeds=[0]", "--limit", "3") == 0
    assert f"\nflbench report tiny.yaml --set 'seeds=[0]' --limit 3 {options}\n" in Path("a.md").read_text()
    assert flbench(monkeypatch, "report", "--store", str(here / "elsewhere"), "--out", str(here / "d.md")) == 0
    assert str(here) not in Path("d.md").read_text()


@pytest.mark.parametrize("words", [["--out", "t.tex"], ["--html", "t.md"], ["--csv", "t.parquet"], ["--out", "t"]])
def test_endings_of_file_names_are_checked(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", *words) == 2
    error = capsys.readouterr().err
    assert f"error: {' '.join(words)}: expected a name that ends in" in error and ".md (--out), .html" in error
    assert sorted(path.name for path in here.iterdir()) == ["runs", "tiny.yaml"]


def test_sources_are_written_and_a_foreign_bibliography_stays(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "report", "tiny.yaml", "--bibtex", "sources.bib") == 0
    assert "wrote tiny.md, sources.bib" in capsys.readouterr().out
    text = Path("sources.bib").read_text()
    assert text.startswith("% flbench report: tiny\n% flbench report tiny.yaml --bibtex sources.bib\n\n")
    assert "\n% norm ln\n@misc{ba2016ln,\n" in text
    assert flbench(monkeypatch, "report", "tiny.yaml", "--bibtex", "sources.bib") == 0  # its own file
    Path("mine.bib").write_text("@misc{mine}\n")
    assert flbench(monkeypatch, "report", "tiny.yaml", "--bibtex", "mine.bib") == 2
    assert "--force" in capsys.readouterr().err and Path("mine.bib").read_text() == "@misc{mine}\n"
    assert flbench(monkeypatch, "report", "tiny.yaml", "--bibtex", "sources.txt") == 2
    assert "--bibtex sources.txt: expected a name that ends in .bib" in capsys.readouterr().err


def test_a_pipe_cuts_no_table(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe has no width: COLUMNS, or the 80 that rich takes, would cut labels."""
    monkeypatch.setenv("COLUMNS", "40")
    norms = [{"name": "gn", "groups": groups} for groups in (2, 4, 8)]
    filled(Path("runs"), [experiment(norm=norm, partition=f"dirichlet:0.{n}") for norm in norms for n in range(1, 6)])
    assert flbench(monkeypatch, "report", "--out", "wide.md") == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert len({line for line in out.splitlines() if "dirichlet:0.1" in line and "dirichlet:0.5" in line}) == 1
