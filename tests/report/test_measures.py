"""How far, how fast and how easily: plateaus, levels, rounds to them, and the test of ranks; by hand."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from scipy import stats as scipy_stats

from flbench.report.board import Leaderboard
from flbench.report.measures import Level, is_flat, level_of
from flbench.report.runs import collect
from flbench.report.stats import Summary, paired_ranks
from flbench.report.write.json import to_json
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.streams import stream
from tests.report.stores import board_of, experiment, finish, leaderboard_of, markdown_of, pair, records, run_of
from tests.report.test_details import RESULT

#: Rounds of the curves below.
ROUNDS = (0, 10, 20, 30)


def curve(accs: Sequence[float], rounds: Sequence[int] = ROUNDS) -> list[dict[str, object]]:
    """Records of a run that has sent and received 1,500 bytes a round."""
    lines = records(rounds, 0.5)
    for line, acc in zip(lines, accs, strict=True):
        line |= {"acc": acc, "bytes_up": 1000 * line["round"], "bytes_down": 500 * line["round"]}
    return lines


def board_of_curves(path: Path, curves: Mapping[tuple[str, int], Sequence[float]], **options: object) -> Leaderboard:
    """A leaderboard of runs by norm and seed."""
    store = Store(path)
    for (norm, seed), accs in curves.items():
        finish(store, experiment(norm=norm, rounds=30, seed=seed), lines=curve(accs))
    return leaderboard_of(collect(StoreSource(store)), **options)


def speeds(board: Leaderboard) -> dict[str, object]:
    (table,) = board.sections[0].details
    return {table.rows[r][1].label: cell.speed for (r, _), cell in table.cells.items()}


CURVES = {
    ("none", 0): (0.1, 0.2, 0.4, 0.6),
    ("none", 1): (0.1, 0.5, 0.5, 0.4),
    ("ln", 0): (0.1, 0.6, 0.7, 0.8),
    ("ln", 1): (0.1, 0.1, 0.2, 0.7),
}


def test_rounds_steps_and_bytes_to_the_level_are_medians_over_seeds(tmp_path: Path) -> None:
    """The lowest final value is the mean 0.5 of none, so that the level is 0.475: rounds 30 and 10, and 10 and 30."""
    board = board_of_curves(tmp_path, CURVES)
    for speed in speeds(board).values():
        assert (speed.level.value, speed.level.of) == (pytest.approx(0.475), "final value")
        assert (speed.n, speed.rounds, speed.steps, speed.bytes) == (2, 20, 200, 30_000)
    text = markdown_of(board)
    assert "| 20 rounds<br><sub>200 steps</sub><br><sub>30.0\N{NO-BREAK SPACE}kB</sub> |" in text
    assert "no row is shown to be at a plateau" in text


def test_a_seed_that_does_not_get_there_takes_more_than_all_rounds(tmp_path: Path) -> None:
    board = board_of_curves(tmp_path, CURVES, target=0.65)
    found = speeds(board)
    assert found["none"].by_seed == {0: math.inf, 1: math.inf}
    assert (found["none"].n, found["none"].rounds, found["none"].bytes) == (0, None, None)
    assert (found["ln"].by_seed, found["ln"].rounds) == ({0: 20.0, 1: 30.0}, 25)
    text = markdown_of(board)
    assert "30 rounds<br><sub>0/2 seeds</sub> |" in text and "65.00, given" in text
    plain = [one["speed"] for one in to_json(board)["details"]]
    json.dumps(plain, allow_nan=False)
    assert {"0": None, "1": None} in [one["rounds_by_seed"] for one in plain]
    half = speeds(board_of_curves(tmp_path / "half", CURVES, target=0.75))["ln"]
    assert (half.n, half.rounds) == (1, None), (
        "the median of two is between a seed that gets there and one that does not"
    )


def test_the_area_is_the_mean_over_the_rounds(tmp_path: Path) -> None:
    """Of seed 0 of ln (0.35 + 0.65 + 0.75) / 3, of seed 1 (0.1 + 0.15 + 0.45) / 3."""
    area = speeds(board_of_curves(tmp_path, CURVES))["ln"].area
    assert area.mean == pytest.approx((1.75 + 0.7) / 6) and area.n == 2


def test_a_cell_is_at_its_plateau_if_the_interval_of_its_slope_is_within_the_margin() -> None:
    def slope(mean: float, half_width: float | None) -> Summary:
        return Summary(3, mean, 0.0, half_width)

    assert [is_flat(slope(mean, width), 0.01) for mean, width in ((0.004, 0.005), (-0.004, 0.005))] == [True, True]
    assert [is_flat(slope(mean, width), 0.01) for mean, width in ((0.004, 0.007), (0.0, 0.011))] == [False, False]
    assert is_flat(slope(0.0, None), 0.01) is None is is_flat(None, 0.01)


def column(tmp_path: Path, ends: Mapping[str, Sequence[float]], **options: object) -> Level | None:
    """The level of a column whose rows have three seeds with these last five of ten evaluations."""
    store = Store(tmp_path)
    rounds = range(0, 101, 10)
    for (norm, accs), seed in itertools.product(ends.items(), range(3)):
        shifted = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, *(acc + 0.001 * seed for acc in accs)]
        finish(store, experiment(norm=norm, rounds=100, seed=seed), lines=curve(shifted, rounds))
    (table,) = leaderboard_of(collect(StoreSource(store)), **options).sections[0].details
    assert level_of(table.cells.values(), None, 0.01) == next(iter(table.cells.values())).speed.level
    return level_of(table.cells.values(), None, 0.01)


FLAT, RISING, IDLE = [0.8] * 5, [0.5, 0.55, 0.6, 0.65, 0.7], [0.1] * 5


def test_the_level_is_that_of_the_lowest_plateau_of_a_row_that_learns(tmp_path: Path) -> None:
    lowest = 0.95 * 0.801
    found = column(tmp_path / "a", {"none": FLAT, "ln": RISING, "fn": IDLE, "gn": [0.9] * 5})
    assert found == Level(pytest.approx(lowest), "plateau")
    found = column(tmp_path / "b", {"none": [0.75, 0.8, 0.85, 0.9, 0.95], "ln": RISING, "fn": IDLE})
    assert found == Level(pytest.approx(0.95 * 0.701), "final value"), "nothing is at a plateau but the row that fails"


def test_a_loss_is_at_the_level_below_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), lines=[{"round": 10, "loss": 0.9, "acc": 0.1}, {"round": 20, "loss": 0.5, "acc": 0.6}])
    (speed,) = speeds(leaderboard_of(collect(StoreSource(store)), metric="loss")).values()
    assert (speed.level.value, speed.rounds) == (pytest.approx(0.5 / 0.95), 20)
    (speed,) = speeds(leaderboard_of(collect(StoreSource(store)), metric="loss", target=0.95)).values()
    assert speed.rounds == 10


def test_the_exact_test_of_ranks_by_hand() -> None:
    """Ranks 1, 2, 3 and 7.5 against 4, 5, 6 and 7.5: differences of -3, -3, -3 and 0, and 4 of 16 ways are as far."""
    first = {0: 10.0, 1: 20.0, 2: 30.0, 3: math.inf}
    second = {0: 40.0, 1: 50.0, 2: 60.0, 3: math.inf, 4: 10.0}
    found = paired_ranks([(first, second)])
    assert found is not None and (found.n, found.mean, found.p, found.half_width) == (4, -2.25, 0.25, None)
    assert paired_ranks([(first, {4: 10.0})]) is None is paired_ranks([])
    alone = paired_ranks([({0: 1.0}, {0: 2.0})])
    assert alone is not None and alone.p is None


@pytest.mark.parametrize("seed", range(3))
def test_the_test_of_ranks_is_the_sign_flip_test_of_mean_ranks(seed: int) -> None:
    """A slow twin: scipy's ranks and permutations of the paired differences, of two pairs of cells."""
    draw = stream(seed, "ranks")
    values = [draw.integers(1, 6, size=(2, 7)).astype(float) for _ in range(2)]
    for both in values:
        both[both == 5] = math.inf
    sides = [tuple(dict(enumerate(side.tolist())) for side in both) for both in values]
    gaps = sum(
        scipy_stats.rankdata(both).reshape(2, 7)[0] - scipy_stats.rankdata(both).reshape(2, 7)[1] for both in values
    ) / len(values)
    expected = scipy_stats.permutation_test(
        (gaps,), lambda one, axis: one.mean(axis=axis), permutation_type="samples", vectorized=True, n_resamples=1000
    )
    found = paired_ranks(sides)  # type: ignore[arg-type]
    assert found is not None and found.mean == pytest.approx(gaps.mean())
    assert found.p == pytest.approx(expected.pvalue)


def test_planned_comparisons_of_rounds_are_by_ranks_and_corrected_with_all_others(tmp_path: Path) -> None:
    """Of six seeds ln gets to 0.5 in 10 rounds, none in 20 and fn never: both p are 2 / 64, of three tests."""
    ends = {"none": (0.3, 0.5, 0.6), "ln": (0.5, 0.6, 0.7), "fn": (0.1, 0.1, 0.2)}
    curves = {
        (norm, seed): (0.1, *(acc + 0.001 * seed * len(norm) for acc in accs))
        for norm, accs in ends.items()
        for seed in range(6)
    }
    pairs = [pair(norm=norm, against="none", measure="fast") for norm in ends if norm != "none"]
    board = board_of_curves(tmp_path, curves, contrasts=(*pairs, pair(norm="ln", against="none")), target=0.5)
    planned = board.sections[0].planned
    assert [(one.value, one.pair.measure, one.contrast.verdict) for one in planned] == [
        ("ln", "far", "more"),
        ("ln", "fast", "open"),
        ("fn", "fast", "open"),
    ]
    planned = planned[1:]
    assert [one.contrast.difference.p for one in planned] == [1 / 32, 1 / 32]
    assert [one.contrast.p for one in planned] == [1 / 16, 1 / 16], "Holm, after the difference of the metric"
    assert [one.effect for one in planned] == [0.5, math.inf]
    assert [one.brief for one in planned[0].doubts] == ["coarse"], "there is one rate; the level is given"
    text = markdown_of(board)
    assert "| ln against none | 0.5 × the rounds<br><sub>open</sub>" in text
    assert "| fn against none | not fn gets there" in text
    assert [(one["measure"], one["effect"]) for one in to_json(board)["planned"]][1:] == [("fast", 0.5), ("fast", None)]
    two = {at: accs for at, accs in curves.items() if at[0] != "fn"}
    alone = board_of_curves(tmp_path / "alone", two, contrasts=(pairs[0],))
    (one,) = alone.sections[0].planned
    assert (one.contrast.verdict, [doubt.why for doubt in one.doubts]) == ("less", ["no plateau", "not tuned"])
    assert "faster, but no plateau, not tuned" in markdown_of(alone)


def test_planned_comparisons_of_the_width_of_rates() -> None:
    """Every seed of ln works at all three rates and every seed of none at one; a diverged run works nowhere."""
    accs = {"none": (0.5, 0.9, None), "ln": (0.9, 0.9, 0.89)}
    runs = [
        dataclasses.replace(
            run_of(acc, "diverged" if acc is None else "done", norm=norm, lr=lr, seed=seed), result=RESULT
        )
        for norm, of in accs.items()
        for lr, acc in zip((0.1, 1.0, 10.0), of, strict=True)
        for seed in range(6)
    ]
    board = board_of(runs, contrasts=(pair(norm="ln", against="none", measure="easy"),))
    (one,) = board.sections[0].planned
    assert (one.contrast.verdict, one.effect, one.contrast.p) == ("more", pytest.approx(2.0), 1 / 32)
    assert [doubt.why for doubt in one.doubts] == ["edge of the grid"], "ln may work at further rates"
    assert "| +2.00 decades<br><sub>easier, but edge of the grid</sub>" in markdown_of(board)
    missing = board_of([*runs[:-1], dataclasses.replace(runs[-1], state="failed", record=None)], contrasts=(one.pair,))
    assert missing.sections[0].planned == ()


def test_ranges_of_the_same_width_are_tied_although_rates_are_rounded() -> None:
    """Rates have twelve digits, so that 0.01 to 0.316... and 0.0316... to 1 differ by 1e-12: a tie, not a rank."""
    rates = (0.01, 0.0316227766017, 0.1, 0.316227766017, 1.0)
    accs = {"none": (0.5, 0.9, 0.9, 0.9, 0.9), "ln": (0.9, 0.9, 0.9, 0.9, 0.5)}
    runs = [
        dataclasses.replace(run_of(acc, norm=norm, lr=lr, seed=seed), result=RESULT)
        for norm, of in accs.items()
        for lr, acc in zip(rates, of, strict=True)
        for seed in range(6)
    ]
    (one,) = board_of(runs, contrasts=(pair(norm="ln", against="none", measure="easy"),)).sections[0].planned
    assert (one.effect, one.contrast.p, one.contrast.verdict) == (0, 1, "open")
