"""What a report checks before it calls a planned comparison shown, by hand and on the committed results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from flbench.data.partition.base import Partition
from flbench.registry import PARTITIONS, Component
from flbench.report.board import Leaderboard
from flbench.report.leaderboard import build
from flbench.report.parts import parts_of
from flbench.report.planned import Planned
from flbench.report.runs import Collection, collect
from flbench.report.stats import Contrast, Difference, Verdict
from flbench.report.trust import Checks, Doubt, Grid, end_of, grid_cost, improves, over_last, rise_of, slopes
from flbench.report.write.json import to_json
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.report.stores import experiment, finish, leaderboard_of, markdown_of, pair
from tests.test_same_methods import FilesSource

ROOT = Path(__file__).parents[2]

#: A retired sweep and its results.
OLD = Path(__file__).with_name("digits_before")

#: Rounds of which each is twice the one before, so that the slope per doubling is that per evaluation.
DOUBLING = (1, 2, 4, 8, 16)


def test_the_end_of_a_curve_is_ten_evaluations_after_round_0_without_a_gap() -> None:
    records: list[dict[str, Any]] = [{"round": r, "acc": r / 100} for r in range(0, 13)]
    assert end_of(records, "acc") == tuple((r, r / 100) for r in range(3, 13))
    records[9] = {"round": 9, "acc": float("nan")}
    assert end_of(records, "acc") == ((10, 0.10), (11, 0.11), (12, 0.12))
    assert end_of(records[:1], "acc") == () == end_of(records, "acc_worst")


def test_a_window_is_known_where_every_seed_has_as_many_evaluations() -> None:
    ends = {0: ((1, 0.2), (2, 0.4)), 1: ((1, 0.5), (2, 0.7))}
    assert over_last(ends, 1) == {0: 0.4, 1: 0.7}
    assert over_last(ends, 2) == pytest.approx({0: 0.3, 1: 0.6})
    assert over_last(ends, 3) == {} == over_last({**ends, 2: ((2, 0.1),)}, 2)


def test_the_slope_is_that_of_the_last_five_evaluations_per_doubling_of_rounds() -> None:
    """The deviations -2 to 2 of log2 of the rounds have the sum of squares 10: (2 * 0.1 + 1 * 0.1 + ...) / 10."""
    line = tuple((at, 0.5 + 0.1 * place) for place, at in enumerate(DOUBLING))
    bent = tuple(zip(DOUBLING, (0.0, 0.0, 0.0, 0.0, 0.5), strict=True))
    assert slopes({0: ((0, 9.0), *line), 1: bent}) == pytest.approx({0: 0.1, 1: 0.1})
    assert slopes({0: line[1:]}) == {}


def test_of_many_evaluations_the_slope_is_that_of_the_second_half_of_the_rounds() -> None:
    """Of 20 evaluations the last ten count, those after round 10; the last ten are also the end that is kept."""
    records = [{"round": at, "acc": 0.9 if at <= 10 else 0.1 * math.log2(at)} for at in range(21)]
    end = end_of(records, "acc")
    assert [at for at, _ in end] == list(range(11, 21))
    assert slopes({0: ((10, 0.9), *end)}) == pytest.approx({0: 0.1})
    assert len(end_of([{"round": at, "acc": 0.5} for at in range(101)], "acc")) == 50
    assert end_of([{"round": at, "acc": 0.5} for at in range(0, 131, 10)], "acc")[0] == (40, 0.5)


def test_a_cell_rises_where_the_interval_of_its_slopes_is_above_0() -> None:
    """Slopes 0.1, 0.2 and 0.3: 0.2 +- 4.303 * 0.1 / sqrt(3) = 0.248; 0.19, 0.2 and 0.21: 0.0248."""

    def ends(*per_doubling: float) -> Any:
        return {
            seed: tuple((at, slope * place) for place, at in enumerate(DOUBLING))
            for seed, slope in enumerate(per_doubling)
        }

    wide, narrow = rise_of(ends(0.1, 0.2, 0.3)), rise_of(ends(0.19, 0.2, 0.21))
    assert wide is not None and wide.half_width == pytest.approx(0.2484, abs=1e-4)
    assert [improves(one, "acc") for one in (wide, narrow)] == [False, True]
    assert improves(rise_of(ends(-0.19, -0.2, -0.21)), "loss") and not improves(narrow, "loss")
    assert improves(rise_of(ends(0.1, 0.2)), "acc") is None is improves(None, "acc")


@pytest.mark.parametrize(
    ("means", "chosen", "cost"),
    [
        ([0.6, 0.8, 0.9, 0.1], 2, 0.1),  # above: no steeper than the step from 0.8 to 0.9
        ([0.6, 0.8, 0.9, None], 2, 0.1),  # whether the next one fails does not matter
        ([0.4, 0.8, 0.9, 0.1], 2, 0.3),  # below: 0.8 + 0.4 is 0.3 above 0.9
        ([0.6, 0.92, 0.9, 0.5], 2, 0.34),  # a peak below: 0.92 + 0.32 is 0.34 above 0.9
        ([0.9, 0.9, 0.9, 0.95], 2, 0.05),  # a neighbour is better
        ([0.9, 0.8, 0.7], 0, None),
        ([0.7, 0.8, 0.9], 2, None),
        ([0.8, None, 0.9, 0.8], 2, None),
    ],
)
def test_what_a_grid_may_cost(means: list[float | None], chosen: int, cost: float | None) -> None:
    assert grid_cost(range(len(means)), means, chosen) == (cost if cost is None else pytest.approx(cost))


def test_a_cell_is_coarse_where_its_grid_may_cost_more_than_the_margin() -> None:
    costs = {Grid(5, cost=0.02): True, Grid(5, cost=0.01): False, Grid(5): None, Grid(1): True}
    assert {grid: grid.is_coarse(0.01) for grid in costs} == costs
    assert Grid(5, at_edge=True).is_coarse(0.01)


def test_unequal_steps_scale_what_a_grid_may_cost() -> None:
    assert grid_cost([0, 1, 3], [0.8, 0.9, 0.5], 1) == pytest.approx(0.2)


def checks(**changes: Any) -> Checks:
    """Checks that a gain of 10 points passes."""
    found: dict[str, Any] = {
        "rising": False,
        "change": Difference(3, 0.0, 0.1, 0.9),
        "grids": ((Grid(5, cost=0.0),), (Grid(5, cost=0.05),)),
        "windows": ("more", "more", "more"),
        "collapsed": (0, 0),
        "varied": True,
        "pairs": 1,
    }
    return Checks(**{**found, **changes})


def words(doubts: tuple[Doubt, ...]) -> tuple[str, ...]:
    return tuple(one.why for one in doubts)


MORE = Contrast(Difference(3, 0.1, 0.01, 0.001), 0.01)
SAME = Contrast(Difference(3, 0.002, 0.004, 0.5), 0.5, 0.01)


@pytest.mark.parametrize(
    ("changes", "doubts"),
    [
        ({}, ()),
        ({"rising": True}, ("rising",)),
        ({"rising": None}, ("slope not known",)),
        ({"change": None}, ("slope not known",)),
        ({"change": Difference(3, -0.2, 0.1, 0.01)}, ("difference falling",)),
        ({"rising": True, "change": Difference(3, 0.2, 0.1, 0.01)}, ("rising", "difference rising")),
        ({"grids": ((Grid(5, cost=0.2),), (Grid(5, cost=0.08),))}, ()),  # the side that is ahead gains more
        ({"grids": ((Grid(5, cost=0.0),), (Grid(5, cost=0.095),))}, ("within the grid",)),
        ({"grids": ((Grid(5, at_edge=True),), (Grid(5, cost=0.0),))}, ("edge of the grid",)),
        ({"grids": ((Grid(5),), (Grid(5, cost=0.0),))}, ("grid not known",)),
        ({"grids": ((Grid(1),), (Grid(5, cost=0.0),))}, ("not tuned",)),
        ({"windows": ("more", "more", None)}, ("window not known",)),
        ({"windows": ("open", "more", None)}, ("depends on the window",)),
        ({"collapsed": (0, 1)}, ("seeds collapsed",)),
    ],
)
def test_a_comparison_names_the_checks_that_it_does_not_pass(changes: dict[str, Any], doubts: tuple[str, ...]) -> None:
    assert words(checks(**changes).doubts(MORE, "acc", 0.01)) == doubts


def test_an_equivalence_is_within_the_grid_where_the_grid_may_cost_the_margin() -> None:
    costs = ((Grid(5, cost=0.001),), (Grid(5, cost=0.007),))
    small: tuple[Verdict, ...] = ("equivalent",) * 3
    assert checks(grids=costs, windows=small).doubts(SAME, "acc", 0.01) == ()
    costs = ((Grid(5, cost=0.008),), (Grid(5, cost=0.0),))
    assert words(checks(grids=costs, windows=small).doubts(SAME, "acc", 0.01)) == ("within the grid",)


def test_of_a_metric_whose_small_values_are_good_the_other_side_is_behind() -> None:
    less = Contrast(Difference(3, -0.1, 0.01, 0.001), 0.01)
    costs = ((Grid(5, cost=0.0),), (Grid(5, cost=0.2),))
    assert words(checks(grids=costs).doubts(less, "loss", 0.0)) == ("within the grid",)
    assert checks(grids=costs).doubts(MORE, "loss", 0.0) == ()
    assert words(checks(rising=True).doubts(MORE, "loss", 0.0))[0] == "falling"


@pytest.mark.parametrize(
    ("value", "classes", "clients", "is_drawn"),
    [
        ("classes:1", 10, 10, False),
        ("classes:1", 10, 20, True),
        ("classes:1", None, 10, True),
        ("classes:2", 10, 10, True),
        ("dirichlet:0.1", 10, 10, True),
        ("iid", 10, 1, False),
        ("by:writer", 10, 10, False),
    ],
)
def test_partitions_declare_whether_seeds_vary_them(
    value: str, classes: int | None, clients: int, is_drawn: bool
) -> None:
    partition: Component = PARTITIONS.parse(value)
    assert isinstance(partition, Partition) and partition.is_drawn(classes, clients) is is_drawn


def store_of(path: Path, slope: float, rounds: int = 100) -> Collection:
    """Runs at three rates: those without a normalization rise by ``slope`` an evaluation, ln is 10 points up."""
    store, requests = Store(path), []
    for norm in ("none", "ln"):
        for lr, below in ((0.01, 0.02), (0.1, 0.0), (1.0, 0.02)):
            for seed in range(4):
                request = experiment(norm=norm, lr=lr, seed=seed, rounds=rounds, partition="classes:1", clients=10)
                requests.append(request)
                own = 0.5 + 0.1 * (norm == "ln") - below + 0.001 * ((7 * seed + 3 * (norm == "ln")) % 5)
                per = slope * (norm == "none")
                lines = [{"round": r, "acc": own + per * r / 10, "seconds": 1.0} for r in range(0, rounds + 1, 10)]
                finish(store, request, lines=lines)
    return collect(StoreSource(store), requests, select_by="tail")


def board_of_store(path: Path, slope: float, rounds: int = 100) -> Leaderboard:
    return leaderboard_of(store_of(path, slope, rounds), select_by="tail", contrasts=(pair(norm="ln", against="none"),))


def only(board: Leaderboard) -> Planned:
    (found,) = board.sections[0].planned
    return found


def test_a_comparison_that_passes_all_is_bold_and_alone(tmp_path: Path) -> None:
    board = board_of_store(tmp_path, 0.0)
    assert only(board).doubts == () and only(board).checks.windows == ("more",) * 3
    text = markdown_of(board).partition("## Values")[0]
    assert "**+10" in text and "<sub>more</sub>" in text
    assert "all seeds share one partition:" in text
    (found,) = to_json(board)["planned"]
    assert found["checks"]["fails"] == [] and found["checks"]["seeds_vary_partition"] is False
    assert found["checks"]["grid_costs"] == pytest.approx([0.02, 0.02])


def test_a_rising_side_is_named_beside_the_verdict_and_the_cell(tmp_path: Path) -> None:
    board = board_of_store(tmp_path, 0.005)
    assert only(board).but[:2] == ("rising", "difference falling")
    text = markdown_of(board)
    assert "<sub>more, but rising, difference falling" in text and "<sub>more, but rising</sub>" in text
    assert "rising, after 100 rounds" in text
    details = to_json(board)["details"]
    assert sorted(cell["rising"] for cell in details) == [False, True]
    assert [cell["coarse"] for cell in details] == [True, True], "the next rates are two points below"


def test_what_runs_are_too_short_for_is_said(tmp_path: Path) -> None:
    assert only(board_of_store(tmp_path / "a", 0.0, rounds=50)).but == ("window not known",)
    assert only(board_of_store(tmp_path / "b", 0.0, rounds=30)).but == ("slope not known", "window not known")


@pytest.mark.slow
def test_the_gains_of_the_old_sweep_are_rising_and_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rates half a decade apart and a stop at 100 rounds the gains with one class a client were not shown."""
    found = planned_of((OLD.with_suffix(".parquet"), OLD.with_suffix(".yaml")), monkeypatch)
    for value in ("scale", "fn", "ln", "gn"):
        (one,) = (one for (name, _), one in found.items() if name == f"{value} against none")
        assert one.contrast.verdict == "more"
        assert {"rising", "difference falling", "within the grid"} <= set(one.but)
        assert one.but_briefly[:2] == ("rising", "coarse")


@pytest.mark.slow
def test_an_export_without_the_last_evaluations_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """``results/digits.parquet`` has rounds 0 and 100 alone."""
    sets = ["report.contrasts=[{norm: [fn, ln], against: none, if: {method: fedavg}}]"]
    found = planned_of(committed("digits"), monkeypatch, sets, ["method=fedavg"])
    assert len(found) == 16
    for one in found.values():
        assert {"slope not known", "window not known"} <= set(words(one.doubts))
    for value in ("fn", "ln"):
        costs = found[f"{value} against none with fedavg", "classes:1, E 10"].checks.costs()
        assert costs[1] == pytest.approx(0.0828, abs=1e-4)  # 93.57 less 85.29 at the rate below


@pytest.mark.slow
def test_finer_rates_and_more_rounds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned_of(committed("plateau"), monkeypatch)
    assert all(one.doubts == () for one in found.values() if one.pair.measure != "easy")


def committed(name: str) -> tuple[Path, Path]:
    """Return the results of a sweep and its file."""
    return ROOT / f"results/{name}.parquet", ROOT / f"sweeps/{name}.yaml"


def planned_of(
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    sets: list[str] | None = None,
    only: list[str] | None = None,
) -> dict[tuple[str, str], Planned]:
    """The planned comparisons of results and a sweep file, by name and column."""
    monkeypatch.delenv("FLBENCH_DATA", raising=False)
    file, spec = files
    board = build(parts_of(FilesSource([file]), [load_sweep(spec, sets or (), only or ())]))
    return {(one.name, one.column): one for section in board.sections for one in section.planned}
