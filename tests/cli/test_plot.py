from __future__ import annotations

import json
from pathlib import Path

import pytest

from flbench.cli.completion import figures
from tests.cli.test_report import fill, flbench, here  # noqa: F401  the fixture


def test_a_kind_is_drawn_into_a_file(
    here: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(here / "runs")
    for name in ("a/figure.svg", "figure.png", "figure.pdf"):
        assert flbench(monkeypatch, "plot", "curves", "tiny.yaml", "--out", name) == 0
        assert capsys.readouterr().out == f"wrote {name}\n"
        assert (here / name).stat().st_size > 5000


def test_several_figures_are_numbered(
    here: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "plot", "labels", "tiny.yaml", "--out", "who.png") == 0
    assert capsys.readouterr().out == "wrote who.png\nwrote who-2.png\n"


def test_a_folder_gets_svg_and_png(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    fill(here / "runs")
    assert flbench(monkeypatch, "plot", "curves", "tiny.yaml", "--out", "folder") == 0
    assert sorted(path.name for path in Path("folder").iterdir()) == ["curves-digits-mlp.png", "curves-digits-mlp.svg"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["curve"], "unknown kind of figure 'curve'; did you mean 'curves'?"),
        (["lr"], "these runs do not support a figure of the metric over the learning rate"),
        (["curves", "--out", "figure.gif"], "cannot draw figure.gif: expected a folder or a name that ends in .png"),
        (["curves", "--out", "tiny.yaml/figure.png"], "cannot write tiny.yaml"),
        (["overfit"], "local steps on each client: it requires the probe `overfit`"),
        (["cost"], "these runs do not support a figure of bytes until the target"),
    ],
)
def test_figures_that_cannot_be_drawn_are_reported(
    here: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    fill(here / "runs")
    assert flbench(monkeypatch, "plot", *words, "tiny.yaml") == 2
    assert message in capsys.readouterr().err


def test_every_kind_is_listed_and_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flbench(monkeypatch, "show", "figures", "--json") == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*listed] == figures("")
    assert listed["lr"]["requires"] == "at least three rates, all trained to the end"
    assert figures("cu") == ["curves"]
