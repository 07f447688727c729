from __future__ import annotations

from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flbench.config import Experiment, Federated, parse_experiment
from flbench.papers import papers
from flbench.papers.niid_bench.claims import NiidBenchSupplement, compare
from flbench.papers.niid_bench.published import (
    MUS,
    PARTITIONS,
    SETTINGS,
    Configuration,
    configuration_of,
    published_rows,
)
from flbench.papers.published_numbers import Judgement
from flbench.report.board import Options
from flbench.report.leaderboard import build
from flbench.report.parts import parts_of
from flbench.report.stats import welch_half_width
from flbench.report.write.json import to_json
from flbench.sweeps import load_sweep
from tests.papers.in_memory import Memory
from tests.report.stores import leaderboard_of, markdown_of

SWEEP = Path(__file__).parents[3] / "sweeps/niid_bench/label_skew.yaml"
FLOWER = {"name": "scaffold", "variant": "flower"}


def request(seed: int = 0, partition: str = "1 class", **fields: Any) -> Experiment:
    settings = {**SETTINGS, **PARTITIONS[partition], "dataset": "fashion_mnist", "method": "fedavg"}
    return parse_experiment({**settings, **fields, "seed": seed})


def finish(store: Memory, one: Experiment, best: float, *, status: Any = "done", last: float = 5.0) -> None:
    """A run whose best accuracy in percent is that of round 3; a diverged one stops in round 6."""
    end = one.rounds if status == "done" else 5
    percents = [7.0, 9.0, 8.0, best, *[last] * (end - 3)]
    lines = [{"round": r, "acc": 0.5, "acc_global": round(p / 100, 6)} for r, p in enumerate(percents)]
    store.finish(one, lines, status=status)


def finished(store: Memory, percents: list[float], **fields: Any) -> None:
    for seed, percent in enumerate(percents):
        finish(store, request(seed, **fields), percent)


def found(store: Memory) -> NiidBenchSupplement:
    return NiidBenchSupplement(compare(store.collection()))


def judgement(store: Memory, method: str = "fedavg", partition: str = "1 class") -> Judgement:
    (one,) = (
        one
        for one in found(store).comparisons
        if one.row.configuration == Configuration("fashion_mnist", partition, method)
    )
    return one.judgement


def test_every_number_is_read_and_has_its_runs_in_the_sweep() -> None:
    text = resources.files("flbench.papers.niid_bench").joinpath("published.csv").read_text(encoding="utf-8")
    rows = published_rows()
    assert len(text.splitlines()) == len(rows) + 1 == 33
    two_classes = [row for row in rows if row.configuration[:2] == ("fashion_mnist", "2 classes")]
    assert {row.label: (row.value, row.sd) for row in two_classes} == {
        "FedAvg": (78.1, "2.51"), "SCAFFOLD": (33.8, "41.22"), "FedProx": (78.05, "0.99"), "FedNova": (71.67, "2.34"),
    }  # fmt: skip
    runs = load_sweep(SWEEP).experiments
    counts = Counter(configuration_of(run) for run in runs if isinstance(run, Federated))
    assert counts == {row.configuration: 3 * (4 if row.label == "FedProx" else 1) for row in rows}
    assert {run.method.label() for run in runs if isinstance(run, Federated)} == {
        "fedavg", "fednova", "scaffold(variant=flower)", "fedprox", "fedprox(mu=0.001)", "fedprox(mu=0.1)",
        "fedprox(mu=1)",
    }  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"momentum": 0.5}, {"norm": "fn"}, {"local_epochs": 5}, {"drop_last": True}, {"model": "mlp"}, {"lr": 0.02},
        {"clients": 20}, {"dataset": "digits", "model": "mlp"}, {"partition": "classes:1"}, {"weight_decay": 0.0},
        {"method": {"name": "fedavg", "server_lr": 0.5}}, {"method": "fedlc"}, {"participation": 0.5},
    ],
)  # fmt: skip
def test_other_settings_have_no_number(other: dict[str, Any]) -> None:
    experiment = parse_experiment({**request().to_json(), **other})
    assert isinstance(experiment, Federated)
    assert configuration_of(experiment) is None


@pytest.mark.parametrize("free", [{"rounds": 5}, {"eval_every": 7}, {"precision": "tf32"}, {"seed": 9}])
def test_settings_that_are_free(free: dict[str, Any]) -> None:
    experiment = parse_experiment({**request().to_json(), **free})
    assert isinstance(experiment, Federated)
    assert configuration_of(experiment) == Configuration("fashion_mnist", "1 class", "fedavg")


def test_welchs_interval_is_scipys() -> None:
    first, second = np.array([28.1, 31.0, 12.2]), np.array([18.3, 3.4, 25.9, 11.0])
    parts = [(one.var(ddof=1) / len(one), len(one) - 1) for one in (first, second)]
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert welch_half_width(parts) == pytest.approx((interval.high - interval.low) / 2, rel=1e-12)
    assert welch_half_width([(0.0, 2), (0.0, 2)]) == 0


def test_the_best_round_counts_and_the_interval_is_that_of_a_difference(store: Memory) -> None:
    """By hand: sd 10 and 17.09 of 3 seeds each, the standard error 11.432, 3.226 degrees of freedom, t 3.060."""
    finished(store, [30.0, 40.0, 20.0])
    (row,) = [one for one in found(store).comparisons if one.cell]
    assert (round(row.difference or 0, 2), row.judgement) == (1.61, Judgement("inconclusive", "± 34.98"))
    assert len(found(store).comparisons) == 16, "numbers of the data set without runs are listed as such"


@pytest.mark.parametrize(
    ("percents", "verdict"),
    [
        ([10.0, 10.0, 10.0], Judgement("holds", "± 0.00")),
        ([10.0, 10.0, 10.3], Judgement("holds", "± 0.43")),
        ([15.0, 15.1, 15.2], Judgement("does not hold", "± 0.25")),
        ([10.0, 10.0, 40.0], Judgement("inconclusive", "± 43.03")),
    ],
)
def test_verdicts_against_a_number_without_spread(store: Memory, percents: list[float], verdict: Judgement) -> None:
    """SCAFFOLD's 10.00 ± 0.00."""
    finished(store, percents, method=FLOWER)
    assert judgement(store, "scaffold") == verdict


def test_where_partitions_differ_the_published_seeds_have_the_same_one(store: Memory) -> None:
    """The variance 1 (1 + 1/3) + 2.51^2 / 3 has 3.81 degrees of freedom; (1 + 2.51^2) / 3 would give 5.41."""
    finished(store, [82.0, 83.0, 84.0], partition="2 classes")
    assert judgement(store, partition="2 classes") == Judgement("inconclusive", "± 5.25")


def test_a_run_that_diverged_counts_with_its_best_round(store: Memory) -> None:
    for seed in range(3):
        finish(store, request(seed, method=FLOWER), 9.5, status="diverged")
    (one,) = [one for one in found(store).comparisons if one.cell]
    assert one.judgement == Judgement("does not hold", "± 0.00, 3 of 3 diverged")
    assert one.ours is not None
    assert one.ours.mean == pytest.approx(0.095)


def test_fedprox_is_the_best_of_four_mu(store: Memory) -> None:
    for mu, best in zip(MUS[:3], (30.0, 33.0, 25.0), strict=True):
        finished(store, [best, best + 1, best + 2], method={"name": "fedprox", "mu": mu})
    assert judgement(store, "fedprox") == Judgement("inconclusive", "best of 3 of 4 values of mu", "not comparable")
    finished(store, [20.0, 21.0, 22.0], method={"name": "fedprox", "mu": 1.0})
    (one,) = [one for one in found(store).comparisons if one.cell]
    assert one.ours is not None
    assert one.ours.mean == pytest.approx(0.34)
    assert one.judgement.obstacle == ""


def test_other_variants_of_scaffold_are_not_the_published_one(store: Memory) -> None:
    finished(store, [10.0, 10.0, 10.0], method="scaffold")
    why = "variant: original, published is flower"
    assert judgement(store, "scaffold") == Judgement("inconclusive", why, "not comparable")
    finished(store, [10.0, 10.0, 10.0], method=FLOWER)
    assert [one.judgement.verdict for one in found(store).comparisons if one.cell] == ["holds", "inconclusive"]
    assert Counter(one.verdict for one in found(store).judgements)["holds"] == 1


def test_a_cell_that_skipped_rounds_or_seeds_is_not_comparable(store: Memory) -> None:
    for seed in range(3):
        one = request(seed, eval_every=25)
        store.finish(one, [{"round": r, "acc_global": 0.3} for r in (0, 25, 50)])
        finish(store, request(seed, rounds=20, method="fednova"), 30.0)
    finish(store, request(0, partition="2 classes"), 80.0)
    store.add(request(1, partition="2 classes"))
    assert judgement(store) == Judgement("inconclusive", "the best of 2 evaluated rounds", "not comparable")
    assert judgement(store, "fednova") == Judgement("inconclusive", "20 of 50 rounds", "shorter")
    assert judgement(store, partition="2 classes") == Judgement("inconclusive", "1 pending")


def test_the_report_shows_the_numbers(store: Memory) -> None:
    finished(store, [30.0, 40.0, 20.0])
    finished(store, [10.0, 10.0, 10.0], method=FLOWER)
    finished(store, [80.0, 81.0, 79.0], method=FLOWER, partition="2 classes")
    board = leaderboard_of(store.collection(), metric="acc_global")
    text = markdown_of(board)
    assert "16 published numbers of NIID-Bench: holds 1, inconclusive 2, not run 13." in text
    section = text[text.index("### NIID-Bench's published numbers") :]
    assert "13 of 16 published numbers were not requested." in section
    assert "SCAFFOLD, 2 classes: one seed at 81.4 and two at 10.0" in section
    assert "| FedAvg | 1 class | fedavg | 28.39 ± 17.09 |" in section
    rows = to_json(board)["niid_bench"]
    assert [(row["published"], row["verdict"]) for row in rows if row["n"]] == [
        (28.39, "inconclusive"), (10.0, "holds"), (33.8, "inconclusive"),
    ]  # fmt: skip


def test_the_report_of_the_sweep(store: Memory) -> None:
    finished(store, [30.0, 40.0, 20.0])
    board = build(parts_of(store, [load_sweep(SWEEP)]), Options(), papers())
    assert [section.title for section in board.sections] == ["fashion_mnist, lenet", "mnist, lenet"]
    text = markdown_of(board)
    assert "32 published numbers of NIID-Bench: inconclusive 1, not run 31." in text
    assert "| FedProx | 1 class | fedprox(mu=0.01) | 32.65 ± 6.68 | – | 50 | – | not run |" in text


def test_other_runs_have_nothing_of_it(store: Memory) -> None:
    store.finish(parse_experiment({"rounds": 1}), [{"round": 1, "acc": 0.5, "acc_global": 0.5}])
    assert compare(store.collection()) == ()
    board = leaderboard_of(store.collection())
    assert "NIID-Bench" not in markdown_of(board)
    assert "niid_bench" not in to_json(board)
