"""The chapter and the figures about random networks, on synthetic runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.papers.in_memory import Memory
from tests.report.stores import experiment

LAYERS = 1000

COLLAPSE = "Without normalization a deep linear network ends in rank one"
RELU = "Without normalization a deep ReLU network ends in rank one"
AVOIDS = "Batch normalization keeps the rank of linear and of ReLU networks from collapsing"
ROOT = "Batch normalization keeps r ≥ c √d in deep linear residual networks"
BOUND = "The soft rank of every layer is at least (1 - τ)² r, τ relative to the mean eigenvalue"
RELU_ROOT = "The same lower bound, r ≥ c √d, holds for ReLU networks (an open question of the paper)"


def request(seed: int, **fields: Any) -> Any:
    return experiment(
        kind="rank", rounds=LAYERS, eval_every=250, samples=64, seed=seed, **{"gamma": 0.5, "width": 32, **fields}
    )


def record(store: Memory, seed: int, rank: Callable[[int], float | None], **fields: Any) -> None:
    """One finished draw whose rank after a layer is as given; its soft rank is just what eq. 5 allows."""
    run = request(seed, **fields)
    lines = []
    for layer in (0, 250, 500, 750, 1000):
        value = rank(layer)
        soft = None if value is None else math.ceil(0.25 * value)
        lines.append({"round": layer, "rank": value, "first_share": 0.5, "soft_rank_0.5": soft, "seconds": 0.0})
    store.finish(run, lines)


def collapsing(layer: int) -> float:
    return 1 + 20 * math.exp(-layer / 50)


def test_a_network_that_collapses_and_one_that_does_not(store: Memory) -> None:
    for seed in range(3):
        record(store, seed, collapsing)
        record(store, seed, lambda _: 5.0, normalized="bn-rms")
    assert {claim.text: claim.verdict for claim in store.chapter().claims} == {
        COLLAPSE: "holds", RELU: "not run", AVOIDS: "holds", ROOT: "inconclusive", BOUND: "holds", RELU_ROOT: "not run",
    }  # fmt: skip
    assert (
        "γ 0.5: r = 1.00 ± 0.00 at the end, at most 1.00 (d = 32, 1000 layers, n=3)" in store.claim(COLLAPSE).evidence
    )
    assert "0.88 ± 0.00 √d at d = 32 only (n=3)" in store.claim(ROOT).evidence


def test_networks_that_do_not_collapse_refute_the_lemma(store: Memory) -> None:
    for seed in range(3):
        record(store, seed, lambda _: 7.0)
        record(store, seed, lambda layer: 5.0 if layer < 700 else 1.1, normalized="bn")
    assert store.claim(COLLAPSE).verdict == store.claim(AVOIDS).verdict == "does not hold"
    assert "it collapses for γ 0.5, d = 32" in store.claim(AVOIDS).evidence


def test_networks_that_are_not_deep_enough_are_not_judged(store: Memory) -> None:
    """At gamma = 0.01 and d = 32 rank one takes some 25,000 layers."""
    record(store, 0, lambda _: 4.6, gamma=0.01)
    assert store.claim(COLLAPSE).verdict == "inconclusive"
    assert "not deep enough to judge: γ 0.01, r = 4.60" in store.claim(COLLAPSE).evidence
    record(store, 0, collapsing)
    assert store.claim(COLLAPSE).verdict == "holds"


@pytest.mark.parametrize(("power", "expected"), [(0.5, "inconclusive"), (0.6, "holds"), (0.3, "does not hold")])
def test_the_exponent_over_the_width_decides_on_theorem_2(store: Memory, power: float, expected: str) -> None:
    for seed in range(3):
        for width in (8, 16, 32, 64):
            found = (1 + 0.01 * (seed - 1)) * width**power
            record(store, seed, lambda _, found=found: found, normalized="bn-rms", width=width)  # type: ignore[misc]
    assert store.claim(ROOT).verdict == expected
    assert f"exponent {power:.2f} [" in store.claim(ROOT).evidence
    assert store.claim(AVOIDS).verdict == "not run", "without networks that have no normalization"


def test_growth_that_slows_down_refutes_theorem_2(store: Memory) -> None:
    for seed in range(3):
        for width in (8, 16, 32, 64):
            found = (1 + 0.01 * (seed - 1)) * min(width, 32) ** 0.9
            record(store, seed, lambda _, found=found: found, normalized="bn-rms", width=width)  # type: ignore[misc]
    assert store.claim(ROOT).verdict == "does not hold"
    assert "], 0.00 [" in store.claim(ROOT).evidence


def test_a_violated_bound_refutes_the_claim(store: Memory) -> None:
    lines = [{"round": LAYERS, "rank": 9.0, "first_share": 0.5, "soft_rank_0.5": 2, "soft_rank_0.1": 8, "seconds": 0.0}]
    store.finish(request(0), lines)
    assert store.claim(BOUND).verdict == "does not hold"
    assert store.claim(BOUND).evidence == "1 of 2 pairs of a layer and a τ violate it"


def test_remarks_name_dead_networks_and_missing_draws(store: Memory) -> None:
    record(store, 0, lambda layer: 3.0 if layer < 500 else None, activation="relu", normalized="bn-rms")
    record(store, 1, lambda _: 3.0, activation="relu", normalized="bn-rms")
    record(store, 0, collapsing, activation="relu")
    assert store.claim(AVOIDS).verdict == "does not hold", "one draw of two ended in nothing"
    grid: Any = store.chapter().blocks[0]
    (row,) = [row for row in grid.rows if row[2].text == "bn-rms"]
    assert [row[-2].text, row[-1].text] == ["1", "1 of 2 draws unfinished, or of rank 0"]


def test_figures_over_depth_and_over_width(store: Memory) -> None:
    for seed in range(2):
        for width in (8, 16, 32):
            record(store, seed, collapsing, width=width)
            record(store, seed, lambda _, root=width**0.5: root, normalized="bn", width=width)  # type: ignore[misc]
    drawings = store.drawings("rank")
    assert [drawing.name for drawing in drawings] == ["rank-depth", "rank-width"]
    assert all(drawing.place == ("study", "rank") for drawing in drawings)
    depth, width_figure = (drawing.figure.axes[0] for drawing in drawings)
    assert depth.get_title() == "linear, γ 0.5"
    assert depth.lines[0].get_xdata().tolist() == [250, 500, 750, 1000], "the first layers have no logarithm"  # type: ignore[union-attr]
    assert "exponent 0.50 [0.50, 0.50]" in width_figure.texts[0].get_text()


def test_a_single_record_is_no_line(store: Memory) -> None:
    store.finish(request(0), [{"round": LAYERS, "rank": 1.0, "first_share": 1.0, "seconds": 0.0}])
    assert store.drawings("rank") == []
