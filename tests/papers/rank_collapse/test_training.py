"""The chapter and the figures about trained networks, on synthetic runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flbench.papers.rank_collapse.training import settings_of
from tests.papers.in_memory import Memory
from tests.report.stores import experiment

EPOCHS = 75

RANKS = "Rank collapses with depth at random initialization, but not under batch normalization"
FALLS = "Without normalization accuracy falls with depth"
KEPT = "With batch normalization accuracy does not fall with depth"
CRUCIAL = "A high rank at initialization is crucial for training: rank predicts accuracy"
BREAKS = "Weights off centre break batch normalization: ranks and accuracy fall"
RAISES = "Pre-training raises the rank of every layer"
BEATS = "A pre-trained network without normalization outperforms batch normalization"
CONTROL = "It is the rank that helps, not the rescaling that comes with pre-training"
MORE = "The more pre-training, the better the training"
PRESERVED = "SGD keeps the magnitude of the last layer's rank"

HE: dict[str, Any] = {"init": "he"}
RESCALED: dict[str, Any] = {"init": "he", "rescale": True}
BN: dict[str, Any] = {"normalized": "bn"}


def steps(count: int) -> dict[str, Any]:
    return {**RESCALED, "pretrain_steps": count}


def add(
    store: Memory,
    acc: float | None,
    rank: float,
    *,
    after: float | None = None,
    seeds: int = 3,
    lrs: tuple[float, ...] = (0.1,),
    rounds: int = EPOCHS,
    spread: float = 0.001,
    **fields: Any,
) -> None:
    """Seeds of one arm: accuracy rises to ``acc`` for 20 epochs (None: it diverges), with ``spread`` between seeds.

    What arms differ by differs by seed, too: equal differences of three seeds show nothing.
    """
    for lr in lrs:
        for seed in range(seeds):
            request = experiment(kind="deep", rounds=rounds, eval_every=5, lr=lr, seed=seed, **{"depth": 32, **fields})
            last = 0.1 if acc is None else acc + spread * seed + 1e-6 * (seed * round(1000 * acc) % 11)
            lines = [
                {
                    "round": epoch,
                    "rank": rank if epoch == 0 else (after or rank),
                    "ranks": [3 * rank, rank],
                    "train_acc": 0.1 + (last - 0.1) * min(epoch, 20) / 20,
                    "test_acc": 0.9 * last,
                }
                for epoch in ([0] if acc is None else sorted({0, 5, 10, min(20, rounds), rounds}))
            ]
            store.finish(request, lines, status="diverged" if acc is None else "done")


def verdicts(store: Memory) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in store.chapter().claims}


def over_depth(bn_at_32: float = 0.97, he_at_32: float = 0.5) -> Memory:
    """Figure 1: without normalization rank and accuracy fall."""
    store = Memory()
    for depth, rank, acc in ((2, 3.3, 0.98), (8, 1.2, 0.97), (32, 1.0, he_at_32)):
        add(store, acc, rank, depth=depth, **HE)
    for depth, rank, acc in ((2, 14.0, 0.975), (8, 33.0, 0.99), (32, 12.0, bn_at_32)):
        add(store, acc, rank, depth=depth, **BN)
    return store


def test_accuracy_and_rank_over_depth() -> None:
    found = verdicts(over_depth())
    assert {text: found[text] for text in (RANKS, FALLS, KEPT, BREAKS, RAISES)} == {
        RANKS: "holds", FALLS: "holds", KEPT: "holds", BREAKS: "not run", RAISES: "not run",
    }  # fmt: skip
    assert (
        "He's init: 2: 98.1 ± 0.2, 8: 97.1 ± 0.2, 32: 50.1 ± 0.2 % by depth (change -48.0 ± 0.0 points, n=3, 75 epochs)"
        in (over_depth().claim(FALLS).evidence)
    )


def test_runs_can_refute_figure_1() -> None:
    found = verdicts(over_depth(bn_at_32=0.5, he_at_32=0.99))
    assert found[FALLS] == found[KEPT] == "does not hold"


def test_a_network_that_trains_on_a_collapsed_rank_is_evidence_against_the_claim() -> None:
    store = over_depth()
    for rank, acc, shift in ((2.8, 0.6, 0.05), (1.1, 0.2, 0.1), (1.0, 0.1, 0.2)):
        add(store, acc, rank, shift=shift, **BN)
    found = store.claim(CRUCIAL)
    assert "rank correlation of the 5 arms with 32 layers 0.82 (exact permutation test: p = 0.13)" in found.evidence
    assert "of all 9 arms and depths" in found.evidence
    assert "against it: He's init at 8 layers, r = 1.20 ± 0.00, 97.1 ± 0.2 %" in found.evidence
    assert found.verdict == "does not hold"


def test_an_arm_that_trains_with_some_seeds_alone_is_no_evidence_against_the_claim() -> None:
    store = over_depth()
    for rank, acc, shift in ((2.8, 0.6, 0.05), (1.1, 0.2, 0.1), (1.0, 0.1, 0.2)):
        add(store, acc, rank, shift=shift, **BN)
    add(store, 0.3, 1.0, spread=0.3, depth=16, **HE)
    add(store, 0.65, 20.0, depth=16, **BN)
    assert "against it: He's init at 8 layers" in store.claim(CRUCIAL).evidence
    assert "He's init at 16 layers" not in store.claim(CRUCIAL).evidence


def test_a_network_that_does_not_train_keeps_its_rank_without_being_evidence(store: Memory) -> None:
    add(store, 0.97, 12.0, after=2.0, **BN)
    add(store, 0.11, 1.0, shift=1.0, **BN)
    assert store.claim(PRESERVED).verdict == "does not hold"
    assert "shift" not in store.claim(PRESERVED).evidence


def test_rank_that_orders_accuracy_predicts_it(store: Memory) -> None:
    for place, shift in enumerate((0.0, 0.05, 0.1, 0.2, 0.5)):
        add(store, 0.9 - 0.1 * place, 9.0 - place, shift=shift, **BN)
    assert store.claim(CRUCIAL).verdict == "holds"
    assert "32 layers 1.00 (exact permutation test: p = 0.017)" in store.claim(CRUCIAL).evidence


def test_shifts_break_batch_norm_dose_by_dose(store: Memory) -> None:
    for shift, rank, acc in ((0.0, 12.0, 0.97), (0.1, 1.1, 0.17), (1.0, 1.0, 0.11)):
        add(store, acc, rank, shift=shift, **BN)
    assert store.claim(BREAKS).verdict == "holds"
    assert "shift 0: r = 12.00 ± 0.00, 97.1 ± 0.2 %; 0.1: r = 1.10" in store.claim(BREAKS).evidence
    robust = Memory()
    for shift in (0.0, 1.0):
        add(robust, 0.97, 12.0, shift=shift, **BN)
    assert robust.claim(BREAKS).verdict == "does not hold"


def raised(light: float = 0.985, control: float = 0.95) -> Memory:
    """Depth 32: light pre-training trains, strong pre-training diverges."""
    store = Memory()
    rates = (0.01, 0.1)
    add(store, 0.9, 1.0, lrs=rates, **HE)
    add(store, control, 1.0, lrs=rates, **RESCALED)
    add(store, light, 2.1, lrs=rates, **steps(3))
    add(store, None, 37.0, lrs=rates, **steps(25))
    add(store, 0.973, 14.0, after=5.0, lrs=rates, **BN)
    return store


def test_pre_training_against_batch_norm_and_the_control() -> None:
    found = verdicts(raised())
    assert {text: found[text] for text in (RAISES, BEATS, CONTROL, MORE, PRESERVED)} == {
        RAISES: "holds", BEATS: "in part", CONTROL: "in part", MORE: "inconclusive", PRESERVED: "in part",
    }  # fmt: skip
    said = raised().claim(BEATS).evidence
    assert "3 steps on the rank less BN, points by epoch: 5: +0.3 ± 0.0, 10: +0.6 ± 0.0, 20: +1.2 ± 0.0, 75: " in said
    assert "25 steps on the rank: 6 of 6 runs diverged at rates from 0.01" in said
    assert "BN: 14.0 to 5.0 in 75 epochs (by 0.36 to 0.36, n=3)" in raised().claim(PRESERVED).evidence


def test_arms_that_diverge_have_no_accuracy_and_decide_nothing() -> None:
    store = raised()
    add(store, 0.1, 1.0, lrs=(0.01, 0.1))
    said = store.claim(CRUCIAL).evidence
    assert "diverged at every rate, so without an accuracy: 25 steps on the rank at 32 layers, r = 37.00" in said
    alone = Memory()
    add(alone, None, 37.0, **steps(25))
    add(alone, 0.9, 1.0, **RESCALED)
    add(alone, 0.9, 14.0, **BN)
    assert alone.claim(CONTROL).verdict == alone.claim(BEATS).verdict == "inconclusive"


def test_more_steps_are_worse_where_arms_that_trained_show_it(store: Memory) -> None:
    for acc, arm in ((0.9, RESCALED), (0.8, steps(3)), (None, steps(25))):
        add(store, acc, 1.0, **arm)
    assert store.claim(MORE).verdict == "does not hold"


def test_steps_are_compared_within_one_way_of_pretraining(store: Memory) -> None:
    """The code's arms are not rescaled: their zero steps are the initialization, not the rescaled control."""
    code: dict[str, Any] = {"init": "glorot", "pretrain_variant": "code"}
    for acc, arm in (
        (0.1, {"init": "glorot"}),
        (0.7, {**code, "pretrain_steps": 25}),
        (0.8, {**code, "pretrain_steps": 75}),
    ):
        add(store, acc, 1.0, **arm)
    add(store, 0.9, 1.0, init="glorot", rescale=True)
    found = store.claim(MORE)
    assert found.verdict == "holds"
    assert found.evidence.startswith("as in the code, by steps, at the best rate: 0: 10.1 ± 0.2 %")
    assert "25 steps on the rank, as in the code less rescaled only, Glorot's init" in store.claim(CONTROL).evidence
    for acc, arm in ((0.9, RESCALED), (0.8, steps(3)), (0.7, steps(25))):
        add(store, acc, 1.0, **arm)
    assert store.claim(MORE).verdict == "in part"


def test_accuracies_that_still_rise_decide_nothing() -> None:
    """After 15 of 75 epochs 32 layers are below one layer, and rise; after 75 they are not below."""
    store = Memory()
    for depth, acc in ((1, 0.9), (32, 0.5)):
        add(store, acc, 12.0, depth=depth, rounds=15, **BN)
    add(store, 0.9, 1.0, rounds=15, **RESCALED)
    add(store, 0.3, 2.0, rounds=15, **steps(3))
    assert store.claim(KEPT).verdict == store.claim(CONTROL).verdict == "inconclusive"
    assert "n=3, 15 epochs of 75, still rising" in store.claim(KEPT).evidence
    assert "3 steps on the rank still rises after 15 epochs" in store.claim(CONTROL).evidence
    for depth in (1, 32):
        add(store, 0.97, 12.0, depth=depth, **BN)
    assert store.claim(KEPT).verdict == "holds"
    assert "15 epochs" not in store.claim(KEPT).evidence


def test_pre_training_that_the_rescaling_explains() -> None:
    assert raised(light=0.95, control=0.98).claim(CONTROL).verdict == "does not hold"


def test_missing_runs_make_a_claim_inconclusive(store: Memory) -> None:
    add(store, 0.97, 14.0, **BN)
    add(store, None, 37.0, seeds=2, **steps(25))
    store.add(experiment(kind="deep", rounds=EPOCHS, eval_every=5, lr=0.1, seed=2, depth=32, **steps(25)))
    assert store.claim(BEATS).verdict == "inconclusive"
    (table,) = [block for block in store.chapter().blocks if hasattr(block, "rows")]
    (row,) = [row for row in table.rows if row[0].text.startswith("25")]
    assert row[-1].text == "diverged: 2/3 at lr 0.1; 1 unfinished"


def test_arms_are_compared_at_the_best_of_the_common_learning_rates(store: Memory) -> None:
    add(store, 0.5, 1.0, lrs=(0.01,), **HE)
    add(store, 0.8, 1.0, lrs=(0.1,), **HE)
    add(store, 0.7, 14.0, lrs=(0.01, 0.1, 0.3), **BN)
    (setting,) = settings_of(store.collection().runs, store.collection())
    assert setting.rates == [0.01, 0.1]
    he, _ = setting.arms
    best = he.best(EPOCHS)
    assert best is not None and best.lr == 0.1
    assert list(he.final.values()) == pytest.approx([0.8, 0.801, 0.802], abs=2e-4)


def test_a_trial_that_lost_seeds_is_not_the_best(store: Memory) -> None:
    add(store, 0.6, 1.0, lrs=(0.01,), **HE)
    add(store, 0.99, 1.0, lrs=(0.1,), seeds=2, **HE)
    ((arm,),) = [setting.arms for setting in settings_of(store.collection().runs, store.collection())]
    best = arm.best(EPOCHS)
    assert best is not None and best.lr == 0.01


def test_claims_about_training_are_not_run_without_training(store: Memory) -> None:
    request = experiment(kind="deep", rounds=0, seed=0, depth=32, **BN)
    store.finish(request, [{"round": 0, "rank": 12.0, "ranks": [30.0, 12.0]}])
    assert set(verdicts(store).values()) == {"not run"}


def over_shifts() -> Memory:
    store = Memory()
    for shift in (0.0, 0.5):
        add(store, 0.9 - shift, 12.0 - 20 * shift, shift=shift, **BN)
    return store


@pytest.mark.parametrize(
    ("what", "store", "said"),
    [
        ("depth", over_depth, ""),
        pytest.param("pretraining", raised, "Diverged at every rate: 25 steps on the rank.", marks=pytest.mark.slow),
        pytest.param("shift", over_shifts, "", marks=pytest.mark.slow),
    ],
)
def test_figures_over_depth_over_layers_and_over_shifts(what: str, store: Callable[[], Memory], said: str) -> None:
    (drawing,) = store().drawings("deep")
    assert drawing.name == f"deep-{what}-digits-all-samples-width-128-75-epochs"
    assert drawing.place == ("study", "deep")
    assert "at the best of the learning rates" in drawing.caption and said in drawing.caption
    assert all(panel.lines for panel in drawing.figure.axes)
