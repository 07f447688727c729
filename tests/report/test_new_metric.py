"""A metric is treated by its declaration alone: a copy of ``acc_global`` is shown as it, everywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flbench.choices import SelectBy
from flbench.exchange.recompute import _farthest
from flbench.metric_specs import METRICS, Metric
from flbench.report.runs import collect
from flbench.report.write.json import to_json
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.report.stores import experiment, finish, leaderboard_of, markdown_of, records

#: Of each seed the share of right answers at the end; the last has collapsed.
ENDS = (0.8, 0.82, 0.81, 0.8, 0.3)


@pytest.fixture
def f1(monkeypatch: pytest.MonkeyPatch) -> str:
    """A metric as ``docs/extending.md`` adds one."""
    known = {**METRICS, "f1": Metric("global accuracy", "accuracy on the whole test set")}
    monkeypatch.setattr(METRICS, "_entries", known)
    return "f1"


def store_of(path: Path) -> Store:
    """Runs of three rates, evaluated seven times, whose f1 is their acc_global and no other number."""
    store = Store(path)
    for place, lr in enumerate((0.1, 0.2, 0.4)):
        for seed, end in enumerate(ENDS):
            request = experiment(lr=lr, seed=seed, rounds=7, eval_every=1, val_fraction=0.2)
            lines = records(range(1, 8), end)
            for line in lines:
                share = end * (1 - 0.3 / line["round"]) - 0.05 * place
                line |= {"acc": 0.5, "acc_weighted": 0.5, "val_acc": share, "acc_global": share, "f1": share}
            finish(store, request, lines=lines, samples=(1437, 360))
    diverged = experiment(lr=0.8, rounds=7, eval_every=1, val_fraction=0.2)
    for seed in range(len(ENDS)):
        finish(store, experiment(**{**diverged.to_json(), "seed": seed}), status="diverged", diverged_at=3)
    return store


@pytest.mark.parametrize("select_by", ["last", "tail", "val", "val-tail", "oracle"])
def test_a_copy_of_a_metric_is_reported_as_it(tmp_path: Path, f1: str, select_by: SelectBy) -> None:
    source = StoreSource(store_of(tmp_path))

    def shown(metric: str) -> tuple[Any, str]:
        board = leaderboard_of(collect(source, select_by=select_by, metric=metric), select_by=select_by, metric=metric)
        text = json.dumps(to_json(board)).replace(f'"{metric}"', '"M"')
        return json.loads(text), markdown_of(board).replace(metric, "M")

    (numbers, page), (expected, expected_page) = shown(f1), shown("acc_global")
    assert numbers == expected
    assert page == expected_page
    (first, *_) = (cell for cell in numbers["cells"] if cell["collapsed_seeds"])
    assert first["collapsed_seeds"] == [4]
    assert first["population_half_width"] > first["ci_half_width"]
    assert numbers["budgets"]


@pytest.mark.parametrize(("computed", "farthest"), [(0.5, 0.0), (0.6, 0.1), (None, float("inf"))])
def test_recomputing_compares_it_between_machines(f1: str, computed: float | None, farthest: float) -> None:
    recorded: Sequence[dict[str, Any]] = [{"round": 1, "f1": 0.5, "acc_worst": 0.1}]
    assert _farthest(recorded, [{"round": 1, "f1": computed, "acc_worst": 0.9}]) == pytest.approx(farthest)


def test_the_declarations_are_those_of_the_rules_before() -> None:
    """Each rule's metrics, as they were listed by hand."""
    assert {name for name, one in METRICS.items() if one.is_averaged} == {
        *("acc", "acc_weighted", "acc_global", "acc_worst", "acc_sd", "acc_personal", "acc_personal_worst", "val_acc"),
        *("acc_finetuned", "acc_finetuned_worst", "loss", "train_loss"),
    }
    assert {name for name, one in METRICS.items() if one.is_share} == {"acc", "acc_weighted", "acc_global", "test_acc"}
    assert {name for name, one in METRICS.items() if one.is_comparable} == {
        *("acc", "acc_weighted", "acc_global", "val_acc", "test_acc")
    }
