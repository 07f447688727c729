from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from flbench.exchange import exports, transfer
from flbench.papers import papers
from flbench.report.output import write_leaderboard
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.finished_sweep import SPEC, Run
from tests.report.stores import accuracy, experiment, filled, finish

#: Runs a command with these words, expects an exit code, and returns what it prints to both streams.
Report = Callable[..., str]


@pytest.fixture
def report(run: Run) -> Report:
    def call(*words: str, code: int = 0, before: tuple[str, ...] = ()) -> str:
        ended, said = run(*before, "report", *words)
        assert ended == code
        return said

    return call


def test_a_spec_becomes_a_leaderboard(here: Path, report: Report) -> None:
    said = report("tiny.yaml")
    assert "60.50 n=2" in said and "wrote tiny.md" in said
    text = Path("tiny.md").read_text()
    assert text.startswith("# tiny\n") and "| norm | iid | classes:1 |" in text
    assert f"- Spec: tiny `{load_sweep('tiny.yaml').spec_hash}`" in text
    assert text.endswith("```sh\nflbench report tiny.yaml\n```\n")
    sweep = load_sweep(here / "tiny.yaml")
    write_leaderboard(Store(here / "runs"), [sweep], here / "beside" / "leaderboard.md", papers())
    assert Path("beside/leaderboard.md").read_text() == text, "what the sweep writes at its end"


def test_a_damaged_result_is_named(here: Path, report: Report, caplog: pytest.LogCaptureFixture) -> None:
    next((here / "runs").rglob("results/*.json")).write_text("{bad")
    report("tiny.yaml")
    (aside,) = Store(here / "runs").quarantine.iterdir()
    assert caplog.messages == [f"a damaged file was set aside: {str(aside.relative_to(here))!r}"]
    assert "1/2: 1 pending" in Path("tiny.md").read_text()


def test_rules_are_options(here: Path, report: Report) -> None:
    report("tiny.yaml", "--select-by", "oracle", "--target", "0.55")
    text = Path("tiny.md").read_text()
    assert "an upper bound and no result" in text and "classes:1: 55.00, given" in text


def test_a_change_of_one_of_two_sweeps(here: Path, report: Report) -> None:
    Path("other.yaml").write_text(SPEC.replace("tiny", "other").replace("iid", "classes:2"))
    for request in load_sweep("other.yaml", ["rounds=40"]).experiments:
        finish(Store(here / "runs"), request, accuracy(request))
    report("tiny.yaml", "other.yaml", "--out", "both.md", "--set", "other:rounds=40", "seeds=[0]")
    text = Path("both.md").read_text()
    assert "- Rounds: 20, 40\n- " in text and "incomplete" not in text
    assert "flbench report tiny.yaml other.yaml --set 'seeds=[0]' --set other:rounds=40 --out both.md\n" in text


def test_csv_and_figures(report: Report) -> None:
    said = report("tiny.yaml", "--csv", "out/runs.csv", "--figures", "out/figures")
    assert said.endswith("wrote tiny.md, out/runs.csv, 3 figures in out/figures (SVG and PNG)\n")
    with Path("out/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {row["partition"] for row in rows} == {"iid", "classes:1"}
    names = ["curves-digits-mlp", "labels-digits-classes-1-10-clients", "labels-digits-iid-10-clients"]
    files = sorted(path.name for path in Path("out/figures").iterdir())
    assert files == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    assert "](out/figures/curves-digits-mlp.svg)\n" in Path("tiny.md").read_text()


def test_the_page_has_its_figures_inside(here: Path, report: Report) -> None:
    said = report("tiny.yaml", "--html", "page.html")
    assert said.endswith(f"wrote tiny.md, page.html\npage: {Path('page.html').resolve().as_uri()}\n")
    assert Path("page.html").read_text().count("<svg role=") == 3
    assert "![" not in Path("tiny.md").read_text(), "their files are gone"
    assert sorted(path.name for path in here.iterdir()) == ["other.yaml", "page.html", "runs", "tiny.md", "tiny.yaml"]


def test_files_that_cannot_be_written_are_reported(report: Report) -> None:
    for option, ending in (("--html", ".html"), ("--csv", ".csv"), ("--figures", ""), ("--out", ".md")):
        said = report("tiny.yaml", option, f"tiny.yaml/inside{ending}", "--only", "seed=0", code=2)
        assert "error: cannot write tiny.yaml" in said


def test_json(report: Report) -> None:
    assert [cell["n"] for cell in json.loads(report("tiny.yaml", "--json"))["cells"]] == [2, 2, 2, 2]
    assert not Path("tiny.md").exists()


def test_exported_files_are_a_source(here: Path, report: Report) -> None:
    store = Store(here / "runs")
    Path("results").mkdir()
    exports.write(here / "results" / "tiny.parquet", transfer.export_runs(store, store.run_ids())[0])
    for name, options in {"a": (), "b": ("--results", "results"), "c": ("--results", "results/tiny.parquet")}.items():
        report("tiny.yaml", "--out", f"{name}.md", *options)
    tables = {Path(f"{name}.md").read_text().partition("Regenerate")[0] for name in "abc"}
    assert len(tables) == 1
    assert "flbench report tiny.yaml --results results --out b.md\n" in Path("b.md").read_text()


def test_the_command_loads_the_same_plug_ins(here: Path, report: Report) -> None:
    (here / "plugins").mkdir()
    (here / "plugins" / "my_file.py").write_text('"""Registers nothing."""\n')
    for _ in range(2):  # the second replaces what the first has written
        report("tiny.yaml", "--out", "a.md", before=("--plugin", "plugins/my_file.py"))
    assert "flbench --plugin plugins/my_file.py report tiny.yaml --out a.md\n" in Path("a.md").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--store absent", 4, "there is no store at absent; `flbench sweep` makes one, --store DIR names another"),
        ("--store empty", 2, "nothing to report in empty: run `flbench sweep quickstart` first"),
        ("absent.yaml", 2, "absent.yaml: no such file"),
        ("--results absent.parquet", 2, "absent.parquet: no such file"),
        ("--results empty", 2, "no exported runs (*.parquet) in empty; `flbench export` writes them"),
        ("--results tiny.yaml", 2, "tiny.yaml: not a readable parquet file"),
        ("--metric f1", 2, "unknown metric 'f1'; known: "),
        ("--metric accuracy", 2, "unknown metric 'accuracy'; did you mean 'acc'? known"),
        ("--metric val_acc", 2, "no run records 'val_acc': set val_fraction, "),
        ("--tune lrr", 2, "cannot lay out a leaderboard by 'lrr': unknown field 'lrr'"),
        ("--target 90", 2, "target of acc: expected a share of at most 1, got 90; one"),
        (
            "tiny.yaml --set 'report={metric: loss, margin: 2}' --metric acc",
            2,
            "margin of acc: expected a share below 1, got 2; one point is 0.01",
        ),
        ("--set rounds=3", 2, "--set, --only and --limit change a sweep: name its file"),
        (
            "tiny.yaml --set tyni:rounds=3",
            2,
            "--set tyni:rounds=3: unknown sweep file 'tyni'; did you mean 'tiny'? known: tiny",
        ),
        ("tiny.yaml --set tiny:round=3", 2, "--set tiny:round=3: unknown path 'round'; did you mean 'rounds'?"),
        *(
            (f"tiny.yaml {words}", 2, f"{words}: expected a name that ends in")
            for words in ("--out t.tex", "--html t.md", "--csv t.parquet", "--out t", "--bibtex t.txt")
        ),
        ("tiny.yaml --out new/provenance.md --details new", 2, "new/provenance.md is one of the pages of details"),
    ],
)
def test_mistakes_are_reported_in_one_line(here: Path, report: Report, words: str, code: int, message: str) -> None:
    Store(here / "empty")
    error = report(*shlex.split(words), code=code)
    assert f"error: {message}" in error and error.count("\n") == 1
    assert list(here.rglob("*.md")) == []


def test_published_numbers_on_request(report: Report) -> None:
    report("tiny.yaml")
    assert "Published numbers" not in Path("tiny.md").read_text()  # nothing was published for digits
    assert "published numbers: not run 365" in report("tiny.yaml", "--published", "--tolerance", "2.5")
    text = Path("tiny.md").read_text()
    assert "365 published numbers: not run 365." in text and "at most 2.5 points to either side" in text
    assert text.endswith("```sh\nflbench report tiny.yaml --published --tolerance 2.5\n```\n")
    report("tiny.yaml", "--tolerance", "-1", code=2)


def test_published_numbers_appear_beside_runs_at_their_settings(here: Path, report: Report) -> None:
    store = Store(here / "published")
    finish(store, experiment(dataset="cifar10", model="cnn", norm="ln", lr=0.3), 0.5)
    said = report("--store", "published", "--out", "a.md")
    assert "published numbers" not in (Path("a.md").read_text() + said).lower()
    for seed in range(3):
        finish(store, experiment(dataset="cifar10", model="cnn", norm="ln", seed=seed), 0.5 + 0.01 * seed)
    report("--store", "published", "--out", "a.md")
    shown = "| FedLN | 14 | fedavg, ln | 77.21 ± 0.85 | 51.00 ± 2.67<br><sub>n=3</sub> | 20 | -26.21 | inconclusive"
    assert shown in Path("a.md").read_text()


@pytest.mark.slow
def test_why_is_shown_on_request(here: Path, report: Report) -> None:
    report("tiny.yaml", "--why")
    assert "No finished run recorded probes" in Path("tiny.md").read_text()
    probes = {"features": {"norm": 2.0, "rank": 3.0, "first_share": 0.5, "singular": [2.0, 1.0], "head_norms": [1.0]}}
    for request in load_sweep("tiny.yaml", ["probes={features: 10}"]).experiments:
        finish(Store(here / "runs"), request, accuracy(request), probes=probes)
    words = ["tiny.yaml", "--set", "probes={features: 10}", "--why"]
    said = report(*words, "--figures", "figures")
    assert "Accuracy follows the rank of the features: inconclusive" in said
    text = Path("tiny.md").read_text()
    why = text[text.index("\n## Why\n") : text.index("## How to read this")]
    assert "](figures/features-digits-mlp-fedavg" in why
    assert "tiny.yaml --set 'probes={features: 10}' --figures figures --why\n" in text
    (plain,) = json.loads(report(*words, "--json"))["why"]
    assert plain["runs_with_probes"] == 8 and plain["cells"][0]["growth"] == 1.0


def test_report_options_apply_to_their_own_sweep(here: Path, report: Report) -> None:
    of_sweeps = {
        "rates": "base: {rounds: 20, eval_every: 10, partition: iid}\nreport: {rows: [norm], tune: []}",
        "best": "base: {rounds: 40, eval_every: 10, partition: iid}\nreport: {rows: [norm], metric: loss, target: 0.5}",
    }
    store = Store(here / "two")
    for name, text in of_sweeps.items():
        axes = "axes: {norm: [none, ln], lr: [0.01, 0.1]}\nseeds: [0, 1]"
        Path(f"{name}.yaml").write_text(f"version: 1\nname: {name}\n{axes}\n{text}\n")
        for request in load_sweep(f"{name}.yaml").experiments:
            finish(store, request, 0.5 + request.lr if request.norm.name == "none" else 0.9 - request.lr)  # type: ignore[union-attr]

    def section(name: str) -> str:
        text = Path("board.md").read_text().partition(f"\n### digits, mlp ({name})\n")[2]
        return re.split("\n#{2,3} ", text)[0]

    for order in (("rates.yaml", "best.yaml"), ("best.yaml", "rates.yaml")):
        report(*order, "--store", "two", "--out", "board.md", "--force")
        rates, best = section("rates"), section("best")
        assert "| norm | lr 0.01<br>iid | lr 0.1<br>iid |" in rates and "best of" not in rates
        assert "#### Best lr of each row" in best and "lr 0.1, best of 2" in best and "0.5, given" in best
    report(
        "rates.yaml", "best.yaml", "--store", "two", "--out", "board.md", "--force", "--tune", "lr", "--metric", "acc"
    )
    assert "lr 0.1, best of 2" in section("rates"), "an option of the command replaces that of every sweep"


def test_another_report_is_not_replaced(here: Path, report: Report) -> None:
    for name in ("notes.md", "page.html"):
        Path(name).write_text("# Notes on tiny\n")
    Path("mine.bib").write_text("@misc{mine}\n")
    report("other.yaml", "--out", "other.md", "--bibtex", "other.bib")
    assert Path("other.bib").read_text().startswith("% flbench report: other\n% flbench report other.yaml --out ")
    assert "\n% norm ln\n@misc{ba2016ln,\n" in Path("other.bib").read_text()

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in here.iterdir() if path.is_file()}

    before = files()
    for words, message in {
        "--out notes.md": "notes.md is no report, and this one is on tiny: name another file, or replace",
        "--out other.md": "other.md is a report on other, and this one is on tiny",
        "--html page.html --csv new.csv": "page.html is no report",
        "--out other.md --latex tex --figures f --bibtex b.bib": "other.md is a report on other",
        "--bibtex mine.bib --csv b.csv --latex tex": "mine.bib is no report",
        "--bibtex other.bib": "other.bib is a report on other",
    }.items():
        assert f"error: {message}" in report("tiny.yaml", *words.split(), code=2)
    assert files() == before, "nothing is written"
    again = ["tiny.yaml", "--only", "partition=iid", "--html", "new.html", "--out", "notes.md"]
    report(*again, "--force")
    report(*again)  # its own files
    assert Path("notes.md").read_text().startswith("# tiny\n") and "--force" not in Path("notes.md").read_text()
    report("other.yaml", "--html", "new.html", code=2)  # a page has a title, too
    for _ in range(2):
        report("tiny.yaml", "--out", "first.md", "--details", "pages")
    report("other.yaml", "--out", "first.md", code=2)  # and so has a first page


def test_a_report_is_named_after_its_sweeps_files_or_store(here: Path, report: Report) -> None:
    store = Store(here / "runs")
    exports.write(here / "exported.parquet", transfer.export_runs(store, store.run_ids())[0])
    for words, name in (
        (["tiny.yaml", "other.yaml"], "tiny-and-1-more.md"),
        ([], "runs.md"),
        (["exported.parquet"], "exported.md"),
        (["--store", str(here / "runs"), "other.yaml"], "other.md"),
    ):
        report(*words)
        assert Path(name).exists(), name
    assert Path("runs.md").read_text().startswith("# flbench leaderboard: runs\n")


def test_the_command_at_the_end_repeats_every_option(here: Path, report: Report) -> None:
    options = "--store runs --out a.md --html b.html --csv c.csv --metric loss --select-by oracle --tune lr --tune E"
    options += " --target 0.30000001 --published --tolerance 2.5 --why --data images"
    report("tiny.yaml", *options.split(), "--set", "seeds=[0]", "--limit", "3")
    assert f"\nflbench report tiny.yaml --set 'seeds=[0]' --limit 3 {options}\n" in Path("a.md").read_text()
    report("--store", str(here / "runs"), "--out", str(here / "d.md"))
    assert str(here) not in Path("d.md").read_text()


def test_a_pipe_cuts_no_table(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has no width: COLUMNS, or the 80 that rich takes, would cut labels."""
    monkeypatch.setenv("COLUMNS", "40")
    norms = [{"name": "gn", "groups": groups} for groups in (2, 4, 8)]
    filled(Path("wide"), [experiment(norm=norm, partition=f"dirichlet:0.{n}") for norm in norms for n in range(1, 6)])
    out = report("--store", "wide")
    assert "…" not in out
    assert len({line for line in out.splitlines() if "dirichlet:0.1" in line and "dirichlet:0.5" in line}) == 1
