"""FedVLS's numbers belong to the runs of its sweep, and each is compared in two readings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flbench.config import Experiment, Federated, parse_experiment
from flbench.data.datasets import load
from flbench.papers.fedvls.claims import FedVlsSupplement, compare
from flbench.papers.fedvls.published import (
    CONTENT,
    METHODS,
    PARTITIONS,
    READINGS,
    SETTINGS,
    configuration_of,
    published_rows,
)
from flbench.papers.published_numbers import Judgement
from flbench.registry import DATASETS
from flbench.report.write.json import to_json
from flbench.sweeps import load_sweep
from tests.data.files import REAL
from tests.papers.in_memory import Memory
from tests.report.stores import leaderboard_of, markdown_of

SWEEP = Path(__file__).parents[3] / "sweeps/fedvls/mnist.yaml"
TEST, TRAINING = READINGS


def request(seed: int = 0, method: str = "fedavg", partition: str = "Dir(0.05)", **fields: Any) -> Experiment:
    return parse_experiment({**SETTINGS, **PARTITIONS[partition], **METHODS[method], **fields, "seed": seed})


def finish(store: Memory, one: Experiment, test: float, training: float | None) -> None:
    """The best accuracies, in percent, are those of rounds 3 and 4."""
    lines = []
    for r in range(one.rounds + 1):
        own = {} if training is None else {"probes": {"training_set": {"acc": training / 100 if r == 4 else 0.1}}}
        lines.append({"round": r, "acc": 0.5, "acc_global": round((test if r == 3 else 5.0) / 100, 6), **own})
    store.finish(one, lines)


def judged(store: Memory, on: str, method: str = "fedavg") -> Judgement:
    rows = [one for one in compare(store.collection()) if one.row.on == on and one.row.configuration.method == method]
    (one,) = (one for one in rows if one.row.configuration.partition == "Dir(0.05)")
    return one.judgement


def test_every_number_has_its_runs_in_the_sweep() -> None:
    rows = published_rows()
    assert len(rows) == 2 * 24
    assert {(row.value, row.sd) for row in rows if row.configuration == ("mnist", "Dir(0.05)", "fedlc")} == {
        (85.56, "0.18")
    }
    runs = load_sweep(SWEEP).experiments
    counts = Counter(configuration_of(run) for run in runs if isinstance(run, Federated))
    assert counts == {row.configuration: 3 for row in rows}


@pytest.mark.parametrize(
    "other",
    [
        {"keep_momentum": False}, {"dataset": "mnist"}, {"local_epochs": 10}, {"bias": False}, {"min_size": 10},
        {"method": {"name": "fedprox", "mu": 0.1}}, {"clip_norm": 5}, {"method": "fedlc"}, {"method": "scaffold"},
    ],
)  # fmt: skip
def test_other_settings_have_no_number(other: dict[str, Any]) -> None:
    experiment = parse_experiment({**request().to_json(), **other})
    assert isinstance(experiment, Federated)
    assert configuration_of(experiment) is None


def test_each_reading_has_its_own_best_round_and_verdict(store: Memory) -> None:
    """FedAvg, 94.77 ± 0.44 of 3."""
    test, training = [93.0, 93.2, 93.1], [94.5, 94.9, 95.0]
    for seed in range(3):
        finish(store, request(seed), test[seed], training[seed])
    assert judged(store, TRAINING).verdict == "holds"
    assert judged(store, TEST).verdict == "does not hold"
    spread = np.array([94.33, 94.77, 95.21])  # of standard deviation 0.44
    interval = stats.ttest_ind(test, spread, equal_var=False).confidence_interval()
    assert judged(store, TEST).why == f"± {(interval.high - interval.low) / 2:.2f}"


def test_a_number_without_spread_has_ours(store: Memory) -> None:
    """FedRS: sd 0.1 of 3, the standard error 0.1 sqrt(2/3), t of 2 degrees of freedom 4.303."""
    for seed, value in enumerate((94.5, 94.6, 94.7)):
        finish(store, request(seed, "fedrs"), value, value)
    assert judged(store, TEST, "fedrs") == Judgement("holds", "± 0.35")


def test_a_single_seed_has_the_published_spread(store: Memory) -> None:
    """FedAvg, 94.77 ± 0.44 of 3: sqrt(0.44^2 (1 + 1/3)) t of 2 degrees of freedom = 2.19; FedRS has no spread."""
    finish(store, request(0), 92.6, 92.5)
    assert judged(store, TEST) == Judgement("holds", "± 2.19")
    assert judged(store, TRAINING) == Judgement("does not hold", "± 2.19")
    finish(store, request(0, "fedrs"), 10.0, 10.0)
    assert judged(store, TEST, "fedrs") == Judgement("inconclusive", "fewer than 3 seeds have no interval")


def test_runs_without_the_probe_or_on_other_images_say_so(store: Memory) -> None:
    finish(store, request(0), 94.0, None)
    assert judged(store, TRAINING) == Judgement("not run")
    assert judged(store, TEST).verdict == "holds"
    other = parse_experiment({**request(1).to_json(), "dataset": {**SETTINGS["dataset"], "content": "0" * 16}})
    finish(store, other, 94.0, 95.0)
    rows = [one for one in compare(store.collection()) if one.row.configuration.method == "fedavg"]
    assert [one.judgement.why for one in rows if one.cell and one.cell.experiment == other] == [
        "not the official images"
    ] * 2


def test_the_report_counts_both_readings(store: Memory) -> None:
    for seed in range(3):
        finish(store, request(seed), 93.0 + seed / 10, 94.8)
    board = leaderboard_of(store.collection(), metric="acc_global")
    text = markdown_of(board)
    for on, counts in ((TEST, "does not hold 1, not run 23"), (TRAINING, "holds 1, not run 23")):
        assert f"24 published numbers of FedVLS, as accuracies on {on}: {counts}." in text
    assert "### FedVLS's published numbers" in text
    assert {row["on"] for row in to_json(board)["fedvls"] if row["n"]} == {TEST, TRAINING}
    assert FedVlsSupplement(()).opening() == []


@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="$FLBENCH_DATA does not hold mnist")
def test_the_content_is_that_of_the_official_images() -> None:
    assert load(DATASETS.parse({"name": "mnist", "test_fraction": 0.25}), REAL).fingerprint == CONTENT
