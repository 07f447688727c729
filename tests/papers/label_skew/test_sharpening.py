"""The claim that lr x lambda_max / 2 moves to 1 along training: on synthetic runs, and error rates by simulation."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flbench.papers.label_skew.claims_by_seed import NEAR, SHARPENING, paths
from flbench.report.claims import Claim
from flbench.report.runs import Collection
from tests.papers.in_memory import Memory
from tests.papers.label_skew.probed_sweeps import board, syntheses_of
from tests.report.stores import draw, experiment

ROUNDS = range(0, 101, 10)
RATES = (0.1, 0.3, 1.0)

#: The ratio of an experiment over rounds.
Ratio = Callable[[Any, int], float]


def runs(ratio: Ratio, acc: Callable[[Any], float] = lambda request: 0.9, every: int = 10) -> Collection:
    """Runs of two norms and three rates on two partitions, whose seeds differ a little."""
    memory = Memory()
    for norm, partition, lr, seed in itertools.product(("none", "fn"), ("classes:1", "iid"), RATES, range(5)):
        request = experiment(
            method="fedavg", norm=norm, partition=partition, lr=lr, seed=seed, rounds=100, probes={"sharpness": every}
        )
        records = []
        for at in ROUNDS:
            largest = (
                2 * ratio(request, at) * math.exp(0.02 * ((7 * seed + at // 10 * (seed + 1)) % 5 - 2)) / request.lr
            )
            record = {"round": at, "acc": acc(request), "recall": [acc(request)] * 10}
            records.append({**record, "probes": {"sharpness": {"lr": request.lr, "lambda_max": largest}}})
        memory.finish(request, records)
    return memory.collection()


def claim(*given: Any) -> Claim:
    (found,) = syntheses_of(board(runs(*given)))
    return next(one for one in found.claims if one.text == SHARPENING[0])


def to_one(request: Any, at: int) -> float:
    """The edge of stability: from 0.02 times the rate to 1, at any rate."""
    return (0.02 * request.lr) ** max(0.0, 1 - at / 50)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (to_one, "holds"),
        (lambda request, at: 1 / to_one(request, at), "holds"),  # from above
        (lambda request, at: 0.9, "holds"),  # there from the start
        (lambda request, at: 0.2 * to_one(request, at), "in part"),  # comes nearer, and ends at 0.2
        (lambda request, at: to_one(request, at) if request.partition.name == "iid" else 0.02, "in part"),
        (lambda request, at: 0.02 * request.lr, "does not hold"),  # follows the learning rate
        (lambda request, at: 0.9 * math.exp(-at / 20), "does not hold"),  # leaves 1
    ],
)
def test_the_verdict_on_ratios_over_rounds(ratio: Ratio, verdict: str) -> None:
    assert claim(ratio).verdict == verdict


def test_a_ratio_near_the_bound_that_does_not_move_is_inconclusive() -> None:
    def ratio(request: Any, at: int) -> float:
        return NEAR * math.exp(0.5 * (request.seed - 2) + 0.3 * ((request.seed + at // 10) % 3 - 1))

    assert claim(ratio).verdict == "inconclusive"


def test_the_evidence_counts_cells_by_column_and_norm() -> None:
    def ratio(request: Any, at: int) -> float:
        return to_one(request, at) if request.partition.name == "iid" else 0.02

    found = claim(ratio, lambda request: 0.15 if request.lr == 1 and request.norm.name == "fn" else 0.9)
    assert (
        found.gist == "It ends within a factor of 2 of 1 in 5 of 10 cells (iid, E 10: 5 of 5; classes:1, E 10: 0 of 5)"
    )
    assert "By norm: none: 3 of 6; fn: 2 of 4." in found.evidence
    assert "Nearer to 1 than before training: iid, E 10: 5 of 5; classes:1, E 10: 0 of 5." in found.evidence
    assert re.search(r"medians of cells: iid, E 10: 0\.00[56]\d* and (1|1\.0\d|0\.99\d?); classes:1", found.evidence)
    assert "n = 5 runs a cell" in found.evidence


def test_two_measurements_are_no_path() -> None:
    (found,) = syntheses_of(board(runs(to_one, lambda request: 0.9, 100)))
    assert SHARPENING[0] not in [one.text for one in found.claims]
    assert draw(board(runs(to_one, lambda request: 0.9, 100)), "sharpening") == []


def test_the_figure_has_a_panel_a_column_and_a_line_a_norm_at_its_best_rate() -> None:
    drawings = draw(board(runs(to_one, lambda request: 0.5 + 0.1 * request.lr), rows=["norm"]), "sharpening")
    (drawing,) = drawings
    panels: Any = drawing.figure.axes
    assert [panel.get_title() for panel in panels] == ["no skew", "one class"]
    for panel in panels:
        none, fn, edge = panel.lines
        assert list(none.get_xdata()) == list(fn.get_xdata()) == list(ROUNDS)
        assert none.get_ydata() == pytest.approx([to_one(SimpleNamespace(lr=1), at) for at in ROUNDS], rel=0.05)
        assert list(edge.get_ydata()) == [1, 1] and panel.get_yscale() == "log"
        assert [text.get_text() for text in panel.texts] == ["lr: no norm 1, feature norm 1"]


@pytest.mark.nightly
@pytest.mark.parametrize("end", [math.log(NEAR), -math.log(NEAR)])
def test_sets_of_cells_are_rarely_wrong(end: float) -> None:
    """Twenty cells that end just outside, with starts as far from 1: at most 5 in 100 sets have a wrong word."""
    draws, sets = np.random.default_rng(0), 500
    wrong_end = wrong_move = 0
    for _ in range(sets):
        values = draws.normal(end, 0.2, (20, 2, 5))
        found = paths([(dict(enumerate(start)), dict(enumerate(last))) for start, last in values])
        wrong_end += found.at_one.any()
        wrong_move += (found.nearer | found.farther).any()
    error = 2 * math.sqrt(0.05 * 0.95 / sets)
    assert wrong_end / sets < 0.05 + error
    assert wrong_move / sets < 0.05 + error


def test_cells_at_one_are_found() -> None:
    """With five runs of sd 0.2 around 1 nine of ten cells among twenty are shown to be at 1."""
    draws = np.random.default_rng(1)
    values = draws.normal(0, 0.2, (20, 5))
    found = paths([(dict.fromkeys(range(5), -4.0), dict(enumerate(last))) for last in values])
    assert found.at_one.sum() >= 17 and found.nearer.all()
