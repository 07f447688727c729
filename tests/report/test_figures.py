from __future__ import annotations

import dataclasses
import math
import re
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from flbench.exchange import exports, transfer
from flbench.papers import papers
from flbench.report.board import Leaderboard
from flbench.report.figures import kinds
from flbench.report.figures.drawing import Drawing, save_as
from flbench.report.figures.maps import _Colors
from flbench.report.figures.style import COLORS, color_numbers, row_styles, spelled
from flbench.report.paper import figure_kinds
from flbench.report.runs import collect
from flbench.report.ticks import Tick
from flbench.run_sources import StoreSource
from flbench.store import Lease, Store
from tests.report.stores import (
    board_of,
    draw,
    experiment,
    filled,
    finish,
    leaderboard_of,
    pair,
    records,
    run_of,
    write_figures,
)


def board(store: Store, **options: Any) -> Leaderboard:
    return leaderboard_of(collect(StoreSource(store)), **options)


def drawings(store: Store, kind: str, **options: Any) -> list[Drawing]:
    return draw(board(store, **options), kind)


def axes_of(drawing: Drawing) -> list[Any]:
    return [panel for panel in drawing.figure.axes if panel.axison]


@pytest.mark.slow
def test_every_kind_is_written_as_svg_and_png_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    requests = [
        experiment(method=method, norm=norm, partition=p, seed=s)
        for method in ("fedavg", "scaffold")
        for norm in ("none", "ln")
        for p in ("iid", "classes:1")
        for s in (0, 1)
    ]
    store = filled(tmp_path / "store", [*requests, experiment(kind="centralized")])
    first, again = (write_figures(board(store), tmp_path / name) for name in "ab")
    assert [picture.svg.name for picture in first] == [
        "curves-digits-mlp.svg",
        "curves-digits-mlp-centralized.svg",
        "data-digits-mlp.svg",
        "heatmap-digits-mlp.svg",
        "labels-digits-classes-1-10-clients.svg",
        "labels-digits-iid-10-clients.svg",
    ]
    for one, other in zip(first, again, strict=True):
        assert one.svg.read_bytes() == other.svg.read_bytes()
        assert one.svg.with_suffix(".png").read_bytes() == other.svg.with_suffix(".png").read_bytes()
        assert ElementTree.parse(one.svg).getroot().tag.endswith("svg")
        assert str(tmp_path) not in one.svg.read_text() and "<dc:date>" not in one.svg.read_text()
        assert imread(one.svg.with_suffix(".png")).std() > 0.05, "something is drawn"
        assert one.place == ("digits", "mlp") and one.caption.startswith("digits")


def test_the_last_bit_of_a_coordinate_is_not_in_the_file(tmp_path: Path) -> None:
    """Processors differ there; Matplotlib's names of clip paths are digests of all bits."""

    def written(name: str, low: float) -> str:
        figure = Figure()
        axes = figure.subplots()
        axes.plot([1, 2], [1, 2], "o")
        axes.set_position((low, 0.1, 0.8, 0.8))
        save_as(Drawing(name, "", figure), tmp_path / f"{name}.svg")
        return (tmp_path / f"{name}.svg").read_text()

    text = written("one", 0.1)
    assert text == written("other", math.nextafter(0.1, 1))
    names, used = (re.findall(pattern, text) for pattern in (r'id="([mp]\d+)"', r'(?:href="#|url\(#)([mp]\d+)[")]'))
    assert len(names) == len(set(names)) >= 4 and set(used) == set(names)


def test_gaps_are_listed_in_the_panel(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(seed=0), 0.5)
    finish(store, experiment(seed=1), status="diverged")
    (drawing,) = drawings(store, "curves")
    (panel,) = axes_of(drawing)
    assert [text.get_text() for text in panel.texts] == ["fedavg, no norm: 1/2 diverged"]
    (line,) = panel.lines
    assert line.get_xydata().tolist() == [[10, 25], [20, 50]]


def test_the_last_evaluations_alone_are_no_curve(tmp_path: Path) -> None:
    """A store with whole runs beside an export of the ends of others."""
    store, other, path = Store(tmp_path / "s"), Store(tmp_path / "t"), tmp_path / "ends.parquet"
    finish(store, experiment(rounds=100), lines=records(range(0, 101, 10), 0.5))
    finish(other, experiment(rounds=100, norm="ln"), lines=records(range(0, 101, 10), 0.5))
    exports.write(path, transfer.export_runs(other, other.run_ids(), ends=True)[0])
    transfer.import_runs(store, exports.read(path), Lease.here())
    (drawing,) = drawings(store, "curves")
    (panel,) = axes_of(drawing)
    (line,) = panel.lines
    assert line.get_xdata().tolist() == [*range(0, 101, 10)]


def test_a_run_with_one_evaluation_is_drawn(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", [experiment(rounds=7)])
    assert write_figures(board(store), tmp_path / "f")[0].svg.with_suffix(".png").stat().st_size > 5000


def test_over_the_learning_rate_incomplete_cells_break_the_line(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for lr, acc in ((0.01, 0.4), (0.1, None), (1.0, 0.6)):
        finish(store, experiment(lr=lr), acc or 0.0, status="done" if acc else "diverged")
    (drawing,) = drawings(store, "lr")
    (panel,) = axes_of(drawing)
    line, crosses = panel.lines
    assert line.get_xdata().tolist() == [0.01, 0.1, 1.0]
    assert str(line.get_ydata().tolist()) == "[40.0, nan, 60.0]"
    assert crosses.get_xdata().tolist() == [0.1]
    assert panel.get_xscale() == "log"
    assert drawings(store, "curves"), "curves are those of the best rate"
    assert drawing.name == "lr-digits-mlp"


def test_a_line_over_the_rates_needs_three_values() -> None:
    """A search that dropped two of three rates before the last round leaves one; pending runs leave none."""
    rates = (0.01, 0.1, 1.0)
    dropped = [dataclasses.replace(run_of(None, "dropped", lr=lr), dropped=5) for lr in rates]
    done = [run_of(0.4, lr=lr) for lr in rates]
    assert draw(board_of([dropped[0], done[1], dropped[2]]), "lr") == []
    assert draw(board_of(run_of(None, "pending", lr=lr) for lr in rates), "lr") == []
    assert len(draw(board_of(done), "lr")) == 1


def test_a_column_without_a_line_has_no_panel_and_rows_without_one_are_named() -> None:
    """Of two columns and two rows one has three rates."""
    places = (("none", "iid"), ("ln", "iid"), ("none", "classes:1"))
    runs = [run_of(0.4, norm=norm, partition=partition, lr=0.1) for norm, partition in places]
    runs += [run_of(0.4, norm="none", partition="iid", lr=lr) for lr in (0.01, 1.0)]
    (drawing,) = draw(board_of(runs), "lr")
    assert [panel.get_title() for panel in axes_of(drawing)] == ["no skew"]
    assert drawing.figure.get_suptitle() == "digits, MLP: one seed; points alone: other values not run"


def test_what_a_panel_lacks_is_said_in_the_title(tmp_path: Path) -> None:
    requests = [
        experiment(norm=norm, partition=p) for norm, p in (("none", "iid"), ("ln", "iid"), ("none", "classes:1"))
    ]
    (drawing,) = drawings(filled(tmp_path / "some", requests), "curves")
    assert drawing.figure.get_suptitle() == "digits, MLP: one seed; rows without a line: not run"
    (drawing,) = drawings(filled(tmp_path / "all", requests[:2]), "curves")
    assert drawing.figure.get_suptitle() == "digits, MLP: one seed"


def test_zero_is_white_in_a_map_of_gains() -> None:
    """Also where less is better, and whatever the greatest gain is."""
    for metric in ("acc", "loss"):
        colors = _Colors([-2.0, 0.0, 7.0], metric, around_zero=True)
        assert colors.bar.to_rgba(0.0)[:3] == pytest.approx((1, 1, 1), abs=0.01)
        assert max(colors.bar.to_rgba(-7.0)[:3]) < 0.55 and max(colors.bar.to_rgba(7.0)[:3]) < 0.55


def test_no_text_is_too_small_to_read(tmp_path: Path) -> None:
    """A figure is 800 px wide on a page."""
    requests = [
        experiment(method=m, norm=n, partition=p)
        for m in ("fedavg", "scaffold")
        for n in ("none", "ln")
        for p in ("iid", "classes:1")
    ]
    store = filled(tmp_path, requests[:-2])
    finish(store, requests[-2], status="diverged")
    for kind in figure_kinds(papers()):
        for drawing in drawings(store, kind):
            sizes = [text.get_fontsize() for text in drawing.figure.findobj(Text) if text.get_text()]
            assert min(sizes) * 800 / (72 * drawing.figure.get_figwidth()) >= 9, kind


@pytest.mark.parametrize("axes", [("norm", "head"), ("method", "norm"), ("method", "norm", "head")])
def test_the_norm_sets_the_colour_of_a_row_and_the_other_axes_its_dashes(axes: tuple[str, ...]) -> None:
    places = {"norm": ["none", "ln"], "method": ["fedavg", "fedyogi"], "head": ["linear", "etf"]}
    rows = list(product(*(places[axis] for axis in axes)))
    ticks = [
        tuple(Tick((places[axis].index(name),), name) for axis, name in zip(axes, row, strict=True)) for row in rows
    ]
    styles = row_styles(ticks, axes)
    color = {row[axes.index("norm")].label: style["color"] for row, style in styles.items()}
    assert color == {"none": COLORS[0], "ln": COLORS[1]}
    assert len({(style["color"], str(style["linestyle"])) for style in styles.values()}) == len(rows)


def test_a_normalization_has_the_same_colour_whatever_else_is_drawn() -> None:
    own = color_numbers(["none", "ln", "fn", "gn", "scale", "bn"])
    assert sorted(own.values()) == list(range(6))
    for some in (["fn", "ln"], ["gn", "ln-static", "none"], ["bn", "bn-last", "gn-static", "scale"]):
        numbers = color_numbers(some, first=1)
        assert {name: numbers[name] for name in some if name in own} == {
            name: own[name] for name in some if name in own
        }
        assert len(set(numbers.values())) == len(numbers) == len(some)
    others = color_numbers(["none", "ln-static", "fn"])
    assert others["ln-static"] == 6, "a colour that no other figure gives to another norm"
    many = color_numbers(f"method {number}" for number in range(20))
    assert many["method 0"] == 0 and len(set(many.values())) == 20


def test_of_many_rows_the_baseline_the_planned_and_the_best_are_shown(tmp_path: Path) -> None:
    """Ten rows: the baseline is the worst, and of planned comparisons is the second worst."""
    store, norms = (
        Store(tmp_path),
        ["none", "rms", "ln", "fn", "gn", "bn", "ln-static", "gn-static", "bn-static", "scale"],
    )
    for place, norm in enumerate(norms):
        finish(store, experiment(norm=norm), 0.1 + 0.05 * place)
    (drawing,) = drawings(store, "curves", contrasts=(pair(norm="rms", against="none"),))
    names = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert {*names} == {spelled(norm) for norm in norms if norm not in ("ln", "fn")} and len(names) == 8
    assert max(len(panel.lines) for panel in axes_of(drawing)) <= 2 * 8  # with a mark for missing seeds each
    assert drawing.caption.endswith("8 of 10 rows: the baseline, those of planned comparisons, and the best.")
    assert "one seed" in drawing.caption and "sd" not in drawing.caption


@pytest.mark.parametrize("kind", ["curves", "data"])
def test_columns_of_different_length_have_axes_of_their_own(tmp_path: Path, kind: str) -> None:
    stores = [Store(tmp_path / name) for name in "ab"]
    for store in stores:
        for request in (experiment(E=5), experiment(partition="iid", E=5), experiment(kind="centralized", E=50)):
            finish(store, request, lines=records([10, 20], 0.5))
    finish(stores[1], experiment(E=1, rounds=1000, eval_every=500), lines=records([500, 1000], 0.5))
    (alike, *_), (apart, *_) = (drawings(store, kind) for store in stores)
    assert len({panel.get_xlim() for panel in axes_of(alike) if panel.lines}) == 1
    for panel in axes_of(apart):
        last = max(line.get_xdata()[-1] for line in panel.lines)
        assert last <= panel.get_xlim()[1] < 1.2 * last, "the whole line is in its panel, and fills it"


def test_the_cost_of_the_level_or_why_a_row_has_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for norm, accs in (("none", (0.2, 0.2, 0.4)), ("ln", (0.5, 0.5, 0.6)), ("fn", (0.1, 0.1, 0.1))):
        lines = records([0, 10, 20], 0.5)
        for line, acc in zip(lines, accs, strict=True):
            line |= {"acc": acc, "bytes_up": 1e6 * line["round"], "bytes_down": 0}
        finish(store, experiment(norm=norm), lines=lines)
    other = experiment(norm="none", method="scaffold")
    finish(store, other, 0.5, fingerprint="aaaaaaaaaaaaaaaa", bytes_up=10, bytes_down=0)
    (drawing,) = drawings(store, "cost")
    (panel,) = axes_of(drawing)
    assert [text.get_text() for text in panel.texts] == [
        "20.0\N{NO-BREAK SPACE}MB",
        "before training",
        "more than 20 rounds",
        "10\N{NO-BREAK SPACE}B",  # other data have their own level
    ]
    assert drawings(store, "cost", target=0.99) == []


def test_names_of_panels_and_titles_do_not_overlap(tmp_path: Path) -> None:
    requests = [
        experiment(
            method=method, norm=norm, partition="dirichlet:0.02", participation=p, momentum=m, weight_decay=0.0005
        )
        for method in ("fedavg", {"name": "fedyogi", "server_lr": 0.0316})
        for norm in ("none", "ln")
        for p in (0.3, 0.5)
        for m in (0.0, 0.95)
    ]
    store = Store(tmp_path)
    for request in requests:
        finish(store, request, 0.5, bytes_up=10, bytes_down=10)
    for kind in ("curves", "cost", "heatmap"):
        (drawing,) = drawings(store, kind)
        drawing.figure.canvas.draw()
        titles = [panel.title for panel in axes_of(drawing)] + [drawing.figure._suptitle]  # type: ignore[attr-defined]
        boxes = [title.get_window_extent() for title in titles if title.get_text()]
        assert len(boxes) > 4
        width = drawing.figure.bbox.width
        assert all(box.x0 >= 0 and box.x1 <= width for box in boxes), f"{kind}: a title is cut"
        clashes = [(one.bounds, other.bounds) for one, other in combinations(boxes, 2) if one.overlaps(other)]
        assert not clashes, f"{kind}: titles overlap"


def test_dollar_signs_in_labels_are_no_mathematics(tmp_path: Path) -> None:
    requests = [
        experiment(dataset={"name": "folder", "path": "a$^$b"}, method=method, norm=norm)
        for method in ("fedavg", "scaffold")
        for norm in ("none", "ln")
    ]
    found = board(filled(tmp_path / "s", requests))
    for kind in ("curves", "heatmap"):
        for drawing in draw(found, kind):
            drawing.figure.canvas.draw()


def test_the_heatmap_shows_gaps(tmp_path: Path) -> None:
    requests = [experiment(method=m, norm=n) for m in ("fedavg", "scaffold") for n in ("none", "ln")]
    store = filled(tmp_path, requests[:3])
    finish(store, requests[3], status="diverged")
    (drawing,) = drawings(store, "heatmap")
    panel = axes_of(drawing)[0]
    assert [text.get_text() for text in panel.texts] == ["60.00", "70.00", "65.00", "", "1/1 diverged"]
    assert [text.get_fontweight() for text in panel.texts[:3]] == ["normal", "bold", "normal"]


def test_labels_without_data_are_left_out(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", [experiment(dataset="cifar10", model="cnn")])
    found = board(store)
    assert draw(found, "labels", data_root=tmp_path / "nowhere") == []


def test_a_partition_is_drawn_once_with_the_samples_that_are_held_out(tmp_path: Path) -> None:
    small = {"partition": "dirichlet:0.1", "min_size": 5}
    requests = [experiment(partition="iid"), experiment(partition="iid", val_fraction=0.2), experiment(**small)]
    drawn = drawings(filled(tmp_path, requests), "labels")
    assert [one.caption.partition(":")[0] for one in drawn if "no skew" in one.caption] == [
        "digits, no skew, 10 clients"
    ]
    assert any(one.caption.startswith("digits, Dirichlet(0.1), 10 clients, min_size 5:") for one in drawn)
    assert len({one.name for one in drawn}) == len(drawn) == 2


def test_kinds_without_support_draw_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, [experiment()])
    assert {kind for kind in figure_kinds(papers()) if drawings(store, kind)} == {"curves", "labels"}


def test_neighbouring_colours_differ_in_grey() -> None:
    def grey(color: str) -> float:
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert all(abs(grey(a) - grey(b)) > 25 for a, b in pairwise(COLORS))


def test_what_a_notebook_has_set_in_matplotlib_changes_no_figure_and_stays_set(tmp_path: Path) -> None:
    found, curves = board(filled(tmp_path / "store", [experiment()])), [figure_kinds(papers())["curves"]]
    (expected,) = kinds.write_figures(found, tmp_path / "a", curves)
    with rc_context({"font.size": 22, "lines.solid_capstyle": "round", "svg.fonttype": "none", "figure.dpi": 20}):
        (changed,) = kinds.write_figures(found, tmp_path / "b", curves)
        assert rcParams["font.size"] == 22
    assert changed.svg.read_bytes() == expected.svg.read_bytes()
