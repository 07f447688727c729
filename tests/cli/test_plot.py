from __future__ import annotations

import json
from pathlib import Path

import pytest

from flbench.cli.completion import figures
from tests.finished_sweep import Run


def test_a_kind_is_drawn_into_files_and_folders(run: Run) -> None:
    for name in ("a/figure.svg", "figure.png", "figure.pdf"):
        assert run("plot", "curves", "tiny.yaml", "--out", name) == (0, f"wrote {name}\n")
        assert Path(name).stat().st_size > 5000
    several = run("plot", "labels", "tiny.yaml", "--out", "who.png")
    assert several == (0, "wrote who.png\nwrote who-2.png\n"), "several figures are numbered"
    assert run("plot", "curves", "tiny.yaml", "--out", "folder")[0] == 0
    assert sorted(path.name for path in Path("folder").iterdir()) == ["curves-digits-mlp.png", "curves-digits-mlp.svg"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["curve"], "unknown kind of figure 'curve'; did you mean 'curves'?"),
        (["lr"], "these runs do not support a figure of the metric over the learning rate"),
        (["curves", "--out", "figure.gif"], "cannot draw figure.gif: expected a folder or a name that ends in .png"),
        (["curves", "--out", "tiny.yaml/figure.png"], "cannot write tiny.yaml"),
        (["features"], "class embeddings over rounds: it requires the probe `features`; local-only and the baseline"),
        (["cost"], "these runs do not support a figure of bytes until the level of a column"),
    ],
)
def test_figures_that_cannot_be_drawn_are_reported(run: Run, words: list[str], message: str) -> None:
    code, said = run("plot", *words, "tiny.yaml")
    assert code == 2 and message in said


def test_every_kind_is_listed_and_completes(run: Run) -> None:
    listed = {row["name"]: row for row in json.loads(run("show", "figures", "--json")[1])}
    assert [*listed] == figures("")
    assert listed["lr"]["requires"] == "at least three rates, all trained to the end"
    assert figures("cu") == ["curves"]
