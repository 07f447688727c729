"""Verdicts on the sharpness paper's theorems, on synthetic runs that follow them or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flbench.papers.rules import inside
from flbench.papers.sharpness import frames
from flbench.papers.sharpness.frames import Family
from flbench.report.blocks import Grid
from flbench.report.claims import Verdict
from tests.papers.in_memory import Memory
from tests.report.stores import experiment, leaderboard_of, unfolded_of

WIDTHS = (50, 100, 200, 400)
VARIANCES = {"relu": {"sigma_w2": 2.0, "sigma_b2": 0.0}, "tanh": {"sigma_w2": 3.0, "sigma_b2": 0.64}}


def add_draws(
    store: Memory,
    value: Callable[[Any], float],
    *,
    widths: Sequence[int] = WIDTHS,
    seeds: Sequence[int] = range(4),
    activation: str = "relu",
    more: dict[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Runs whose lambda_max is ``value`` of the experiment, give or take a percent."""
    for width in widths:
        for seed in seeds:
            given = {"activation": activation, **VARIANCES[activation], **fields}
            request = experiment(kind="sharpness", rounds=0, width=width, seed=seed, **given)
            lambda_max = value(request) * (1 + 0.01 * (-1) ** seed)
            store.finish(request, [{"round": 0, "lambda_max": lambda_max, **(more or {})}])


def theory(request: Any) -> float:
    """The value of theorem 2.2."""
    predicted: Any = frames.theory(Family.of(request), request.width, {})
    return float(predicted.value)


def bound(request: Any) -> float:
    predicted: Any = frames.theory(Family.of(request), request.width, {})
    return float(predicted.lower)


def test_runs_that_follow_theory_support_it(store: Memory) -> None:
    for activation in ("relu", "tanh"):
        add_draws(store, theory, activation=activation)
    found = store.claim("theorem 2.2")
    assert found.verdict == "holds"
    assert found.evidence.startswith(
        "ReLU (2, 0): measured/theory 1.00 at 50, 1.00 at 100, 1.00 at 200, 1.00 at 400; "
        "mean 277 (sd 3.19, n=4) at M = 400 against 277; exponent 0.97 [0.96, 0.98], n=16. tanh (3, 0.64): "
    )
    others = {one.verdict for one in store.chapter().claims if one.source != "theorem 2.2"}
    assert others == {"not run"}


#: What C = 10 outputs of variance 1 make of eta_1, eta_2 and eta_3^2, about.
CONSTANTS = {"eta1": 1.3, "eta2": 2.2, "eta3_squared": 0.2, "lambda_mean_field": 50.0}

MEAN_LAST, BN_MIDDLE = {"normalized": "mean-last"}, {"normalized": "bn-middle"}
LN_ALL: dict[str, Any] = {"normalized": "ln-all", "outputs": 10, "more": CONSTANTS}


@pytest.mark.parametrize(
    ("source", "fields", "value", "verdict"),
    [
        ("theorem 2.2", {}, theory, "holds"),
        ("theorem 2.2", {}, lambda request: 1.08 * theory(request), "holds"),
        ("theorem 2.2", {}, lambda request: 1.3 * theory(request), "does not hold"),
        ("theorem 2.2", {}, lambda request: 277.0, "does not hold"),  # right at the widest alone: no slope
        # Noise proves nothing.
        ("theorem 2.2", {}, lambda request: (1.2 + 0.3 * (-1) ** request.seed) * theory(request), "inconclusive"),
        ("theorem 3.3", MEAN_LAST, lambda request: 3.6 * bound(request), "holds"),
        ("theorem 3.3", MEAN_LAST, lambda request: 3.6 * bound(request) * request.width / 50, "does not hold"),  # grows
        ("theorem 3.3", MEAN_LAST, lambda request: 0.5 * bound(request), "does not hold"),  # flat, below the bound
        ("theorem 3.3", MEAN_LAST, lambda request: 3.6 * bound(request) * (request.width / 50) ** 0.25, "inconclusive"),
        ("theorem 3.4", BN_MIDDLE, lambda request: 70.0, "does not hold"),
        ("theorem 3.4", {**BN_MIDDLE, "activation": "tanh"}, lambda request: 70.0, "not run"),  # a control
        ("theorem 4.1", LN_ALL, lambda request: 0.5 * request.width, "holds"),
        ("theorem 4.1", LN_ALL, lambda request: 30.0, "does not hold"),
        ("theorem 4.1", LN_ALL, lambda request: 50.0 * request.width, "does not hold"),  # beyond the upper bound
        ("theorem 4.1", {**LN_ALL, "outputs": 3}, lambda request: 0.5 * request.width, "not run"),  # left out
    ],
)
def test_the_verdict_on_a_theorem(
    store: Memory, source: str, fields: dict[str, Any], value: Callable[[Any], float], verdict: Verdict
) -> None:
    add_draws(store, value, **fields)
    assert store.claim(source).verdict == verdict


def test_one_activation_of_two_is_in_part(store: Memory) -> None:
    add_draws(store, theory)
    add_draws(store, lambda request: 3 * theory(request), activation="tanh")
    assert store.claim("theorem 2.2").verdict == "in part"


@pytest.mark.parametrize(("widths", "seeds"), [((50, 100), range(4)), (WIDTHS, range(2))])
def test_little_data_are_inconclusive(store: Memory, widths: Sequence[int], seeds: Sequence[int]) -> None:
    add_draws(store, theory, widths=widths, seeds=seeds)
    found = store.claim("theorem 2.2")
    assert found.verdict == "inconclusive"
    assert "widths with 3 draws or more; a verdict needs 3 of them" in found.evidence


def test_widths_with_few_draws_do_not_count(store: Memory) -> None:
    add_draws(store, theory)
    add_draws(store, lambda request: 9 * theory(request), widths=(800,), seeds=(0,))
    found = store.claim("theorem 2.2")
    assert found.verdict == "holds"
    assert "800" not in found.evidence


def test_other_depths_are_named(store: Memory) -> None:
    add_draws(store, theory)
    add_draws(store, theory, layers=5)
    evidence = store.claim("theorem 2.2").evidence
    assert evidence.startswith("ReLU (2, 0): ")
    assert " ReLU (2, 0), L = 5: " in evidence


def test_unfinished_runs_and_other_settings_do_not_count(store: Memory) -> None:
    """Other numbers of samples and outputs belong to other claims; a claimed run has no result."""
    add_draws(store, theory, samples=1000)
    add_draws(store, theory, outputs=10)
    store.add(experiment(kind="sharpness", rounds=0, width=64))
    found = store.chapter()
    assert {one.verdict for one in found.claims} == {"not run"}
    assert len(found.runs) == 33
    (grid,) = (block for block in found.blocks if isinstance(block, Grid))
    assert len(grid.rows) == 2 * len(WIDTHS)


def test_batch_norm_of_the_outputs_is_compared_with_the_bound_of_its_own_outputs(store: Memory) -> None:
    """With one output Q_2/Q_1 = 1/sigma^2: the bound 2.3143 / 0.25 = 9.257 lies below 20, but not below 8."""
    add_draws(store, lambda request: 20.0, normalized="bn-last", more={"sigmas": [0.5]})
    found = store.claim("eq. 19")
    assert found.verdict == "holds"
    assert "2.2 times the lower bound; within bounds in 16 of 16 draws" in found.evidence
    add_draws(
        store, lambda request: 8.0, normalized="bn-last", more={"sigmas": [0.5]}, activation="relu", seeds=range(4, 8)
    )
    assert store.claim("eq. 19").verdict == "does not hold"


def test_middle_batch_norm_grows_for_relu_and_tanh_is_a_control(store: Memory) -> None:
    add_draws(store, lambda request: bound(request) + 1.7, normalized="bn-middle")
    add_draws(store, lambda request: 6.0, normalized="bn-middle", activation="tanh")
    found = store.claim("theorem 3.4")
    assert found.verdict == "holds"
    assert "within bounds in 16 of 16 draws" in found.evidence
    assert "Outside the theorem: tanh (3, 0.64), exponent 0.00" in found.evidence


def test_a_draw_with_and_without_its_spectrum_counts_once(store: Memory) -> None:
    add_draws(store, theory)
    add_draws(store, theory, spectrum=True, widths=(200,), more={"spectrum": [2.0, 1.0], "lambda_mean": 0.1})
    drawn = frames.draws(store.collection().runs)
    assert drawn.groupby("width").size().tolist() == [4, 4, 4, 4]


def test_records_without_what_a_bound_needs_have_no_bound(store: Memory) -> None:
    add_draws(store, lambda request: 20.0, normalized="bn-last")
    drawn = frames.draws(store.collection().runs)
    assert drawn[["value", "lower", "upper"]].isna().all(axis=None)
    assert store.claim("eq. 19").verdict == "inconclusive"


def test_a_report_shows_verdicts_and_tables(store: Memory) -> None:
    add_draws(store, theory)
    text = unfolded_of(leaderboard_of(store.collection()))
    assert "## Sharpness of wide networks" in text
    assert "theorem 2.2" in text
    assert "**holds**" in text
    assert "36.6" in text


@pytest.mark.parametrize(
    ("interval", "bounds", "outcome"),
    [
        ((-0.1, 0.1), (-0.25, 0.25), True),
        ((0.1, 0.3), (-0.25, 0.25), None),
        ((0.4, 0.6), (-0.25, 0.25), False),
        ((0.8, 1.0), (0.75, 1.25), True),
        ((None, None), (0.75, 1.25), None),
        ((0.6, 0.8), (0.5,), True),
        ((0.4, 0.7), (0.5,), None),
        ((0.2, 0.4), (0.5,), False),
    ],
)
def test_an_interval_is_inside_bounds_outside_or_across(
    interval: tuple[float | None, float | None], bounds: tuple[float, ...], outcome: bool | None
) -> None:
    assert inside(*interval, *bounds) is outcome
