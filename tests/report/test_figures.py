from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from flbench.report import frames
from flbench.report.figures import COLORS, write_curves
from flbench.report.leaderboard import build
from flbench.store import Store
from tests.report.stores import experiment, filled, finish


def draw(store: Store, directory: Path) -> list[Path]:
    source = frames.StoreSource(store)
    return write_curves(build(frames.collect(source)), source, directory)


def test_a_figure_a_table_as_svg_and_png_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    wishes = [
        experiment(norm=norm, partition=p, seed=s)
        for norm in ("none", "ln")
        for p in ("iid", "classes:1")
        for s in (0, 1)
    ]
    store = filled(tmp_path / "store", [*wishes, experiment(kind="centralized")])
    first, again = draw(store, tmp_path / "a"), draw(store, tmp_path / "b")
    assert [path.name for path in first] == [
        "curves-digits-mlp.svg",
        "curves-digits-mlp.png",
        "curves-digits-mlp-centralized.svg",
        "curves-digits-mlp-centralized.png",
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    svg = ElementTree.parse(first[0]).getroot()
    assert svg.tag.endswith("svg")
    assert str(tmp_path) not in first[0].read_text()
    assert imread(first[1]).std() > 0.05, "something is drawn"


def test_gaps_are_told_in_the_panel(tmp_path: Path) -> None:
    from flbench.report.figures import draw_curves

    store = Store(tmp_path)
    finish(store, experiment(seed=0), 0.5)
    finish(store, experiment(seed=1), status="diverged")
    source = frames.StoreSource(store)
    (section,) = build(frames.collect(source)).sections
    (panel,) = draw_curves(section, section.tables[0], source).axes
    assert [text.get_text() for text in panel.texts] == ["fedavg none: 1/2 diverged"]
    (line,) = panel.lines
    assert line.get_xydata().tolist() == [[10, 25], [20, 50]]


def test_neighbouring_colours_differ_in_grey() -> None:
    def grey(color: str) -> float:
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert all(abs(grey(a) - grey(b)) > 25 for a, b in pairwise(COLORS))


@pytest.mark.parametrize("rounds", [1, 7])
def test_one_point_is_drawn_too(tmp_path: Path, rounds: int) -> None:
    assert draw(filled(tmp_path / "s", [experiment(rounds=rounds)]), tmp_path / "f")[1].stat().st_size > 5000
