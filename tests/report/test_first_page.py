"""The first page: which columns and rows it has, what is bold, what it says; and the files of a report with details."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flbench.report.board import Leaderboard, Picture
from flbench.report.headline import MOST_ROWS, headline
from flbench.report.output import written
from flbench.report.page.first import MOST_FIGURES, pictures_of_first
from flbench.report.trust import Doubt
from flbench.sweeps.layout import Pair, conditions
from tests.report.stores import board_of, markdown_of, pair, run_of

NORMS = ("none", "fn", "ln", "gn", "rms", "bn")
METHODS = ("fedavg", "fedyogi", "fedadam", "scaffold")


@cache
def board(
    partitions: tuple[str, ...] = ("classes:1", "iid"), methods: tuple[str, ...] = METHODS, **layout: Any
) -> Leaderboard:
    """Four methods x six normalizations, five seeds; with one class normalizations gain 10 points."""
    runs = []
    for method, norm, partition, seed in product(methods, NORMS, partitions, range(5)):
        gain = 0.1 * (norm != "none" and partition == "classes:1") + 0.02 * (method != "fedavg")
        noise = 0.01 * ((7 * seed + 3 * len(norm) + len(method)) % 5)
        runs.append(run_of(0.6 + gain + noise, method=method, norm=norm, partition=partition, seed=seed))
    return board_of(runs, **layout)


def pairs(*norms: str) -> tuple[Pair, ...]:
    return tuple(pair(norm=norm, against="none") for norm in norms)


def test_the_baseline_comes_first_then_the_planned_rows() -> None:
    found = headline(board(contrasts=pairs("ln", "bn")).sections)
    assert found is not None and found.baseline == found.rows[0].row
    names = [" ".join(at.label for at in row.row) for row in found.rows]
    assert names[0] == "fedavg none" and set(names[1:3]) == {"fedavg ln", "fedavg bn"}
    assert len(names) == MOST_ROWS and found.left_out == len(METHODS) * len(NORMS) - MOST_ROWS
    assert not any(name.startswith("fedavg") for name in names[3:]), "the others are two points better"


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["iid", "classes:1"]),
        ((), None),
        ((('partition="classes:1"',),), ["classes:1"]),
        ((('partition="classes:1"',), ('partition="iid"',)), ["classes:1", "iid"]),
        ((('partition="classes:1"',), ("E=10",)), ["classes:1", "iid"]),
    ],
)
def test_columns_are_those_that_the_sweep_names(chosen: tuple[Any, ...] | None, names: list[str] | None) -> None:
    (section,) = board().sections
    layout = dataclasses.replace(section.layout, headline=None if chosen is None else tuple(map(conditions, chosen)))
    found = headline([dataclasses.replace(section, layout=layout)])
    assert (found and [column.name for column in found.columns]) == names


def test_nothing_is_bold_without_a_planned_comparison() -> None:
    """Although ten points with one class a client are significant."""
    found = headline(board().sections)
    assert found is not None
    assert not any(is_better for row in found.rows for is_better in row.better)


def test_a_planned_comparison_of_the_two_cells_decides() -> None:
    (section,) = board(("classes:1",), contrasts=pairs("ln")).sections
    (planned,) = section.planned
    passing = dataclasses.replace(planned, cells=1, doubts=())
    refuted = dataclasses.replace(passing, contrast=dataclasses.replace(planned.contrast, p=0.5))
    doubted = dataclasses.replace(passing, doubts=(Doubt("rising", "rising"),))
    for one, is_bold in ((passing, True), (refuted, False), (doubted, False)):
        found = headline([dataclasses.replace(section, planned=(one,))])
        assert found is not None
        better = [" ".join(at.label for at in row.row) for row in found.rows if row.better[0]]
        assert better == ["fedavg ln"] * is_bold


def test_a_component_with_other_settings_is_another_row() -> None:
    """What a planned comparison shows of ``scale`` says nothing about ``scale(factor=3)``."""
    gains = {"none": 0.0, "scale": 0.1, "scale(factor=3)": 0.0, "ln": 0.05}
    runs = []
    for (norm, gain), seed in product(gains.items(), range(5)):
        value = {"name": "scale", "factor": 3} if "=" in norm else norm
        runs.append(run_of(0.6 + gain + 0.01 * ((7 * seed + 3 * len(norm)) % 5), norm=value, seed=seed))
    (section,) = board_of(runs, contrasts=pairs("scale")).sections
    passing = tuple(dataclasses.replace(one, doubts=()) for one in section.planned)
    found = headline([dataclasses.replace(section, planned=passing)])
    assert found is not None
    better = {row.row[-1].label: row.better[0] for row in found.rows}
    assert list(better) == ["none", "scale", "ln", "scale(factor=3)"]
    assert better["scale"] and not better["scale(factor=3)"]


def test_sections_with_other_row_axes_share_the_table() -> None:
    """Every cell has a head, so a section without heads among its rows has the row of the linear one."""
    (plain,) = board(("classes:1",), methods=("fedavg",)).sections
    runs = [
        run_of(0.5, partition="classes:1", head=head, model="cnn", dataset="mnist", seed=seed)
        for head, seed in product(("linear", "cosine"), range(3))
    ]
    (heads,) = board_of(runs, rows=("method", "norm", "head")).sections
    found = headline([plain, heads])
    assert found is not None and found.row_axes == ("method", "norm", "head")
    filled = {" ".join(at.label for at in row.row): [cell is not None for cell in row.cells] for row in found.rows}
    assert filled["fedavg none linear"] == [True, True] and filled["fedavg none cosine"] == [False, True]


def test_figures_of_the_first_page_are_few_and_of_its_first_data_set(tmp_path: Path) -> None:
    places = [("cifar10", "cnn"), ("digits", "mlp")]
    pictures = tuple(
        Picture(kind, kind, tmp_path / f"{kind}-{place[0]}.svg", place, on_first_page=kind != "cost")
        for kind in ("cost", "lr", "why", "published", "forest")
        for place in places
    )
    shown = pictures_of_first(dataclasses.replace(board(), pictures=pictures))
    assert [one.svg.name for one in shown] == ["lr-digits.svg", "why-digits.svg", "published-digits.svg"]
    assert len(shown) == MOST_FIGURES


def test_the_files_of_a_report_link_each_other(tmp_path: Path) -> None:
    picture = Picture("curves", "a caption", tmp_path / "figures" / "curves.svg", ("digits", "mlp"))
    report = dataclasses.replace(board(), pictures=(picture,))
    files = written(report, tmp_path / "board.md", tmp_path / "docs" / "results")
    names = {path.relative_to(tmp_path).as_posix() for path in files}
    assert names == {f"docs/results/{name}.md" for name in ("digits-mlp", "how-to-read-this", "provenance")} | {
        "board.md"
    }
    targets = {picture.svg, *files}
    for path, text in files.items():
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (path.parent / link).resolve() in targets, (path, link)
        assert text.startswith("# ") and "\n# " not in text
    assert "](../../figures/curves.svg)" in files[tmp_path / "docs" / "results" / "digits-mlp.md"]
    (one,) = written(report, tmp_path / "board.md", None).values()
    same = files[tmp_path / "board.md"].partition("## Details")[0].partition("## Values")[2]
    assert same.replace("docs/results/how-to-read-this.md", "#how-to-read-this") in one


def test_the_table_of_planned_comparisons_counts_verdicts_beside_the_columns() -> None:
    text = markdown_of(board(contrasts=pairs("ln"), headline=(conditions(['partition="classes:1"']),)))
    assert "| comparison | classes:1 | all 2 columns |" in text
    assert re.search(
        r"^\| ln against none \| \+10\.00 ± .*more, but .* \| open in 1, fails in 1 \|$", text, re.MULTILINE
    )
    assert "| comparison | iid | classes:1 |" in markdown_of(board(contrasts=pairs("ln")))


def test_verdicts_name_a_margin_other_than_the_default() -> None:
    """Of several sweeps on the page each may have a margin of its own."""
    default, wide = (
        markdown_of(board(("iid",), contrasts=pairs("ln"), margin=margin)).partition("## Values")[0]
        for margin in (None, 0.2)
    )
    assert "equivalent (within 1 point)" in default and "<sub>equivalent within" not in default
    assert "equivalent (within 20 points)" in wide and "<sub>equivalent within 20 points, but" in wide
