from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flbench.config import Experiment
from flbench.report import dataframes
from flbench.report.cells import cells_of, rows_of
from flbench.report.runs import Run, collect
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.report.stores import FORGOTTEN, claim, experiment, fail, finish, forget_norm, records


def runs_of(store: Store, *requests: Experiment, **options: str) -> tuple[Run, ...]:
    return collect(StoreSource(store), requests or None, **options).runs


def accuracies(runs: tuple[Run, ...]) -> list[float | None]:
    return [run.record and run.record["acc"] for run in runs]


def test_an_extended_run_has_a_record_for_each_request(tmp_path: Path) -> None:
    store = Store(tmp_path)
    short, long = experiment(), experiment(rounds=40)
    finish(store, short, lines=records([10, 20], 0.6))
    finish(store, long, lines=records([10, 20], 0.6) + records([30, 40], 0.8))
    assert accuracies(runs_of(store, short)) == [0.6]
    assert accuracies(runs_of(store, long)) == [0.8]
    assert sorted(run.rounds for run in runs_of(store, short, long)) == [20, 40]


def test_intermediate_evaluations_do_not_matter(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), 0.9)
    assert accuracies(runs_of(store, experiment(eval_every=1))) == [0.9]


def test_a_result_with_the_requested_probes_counts(tmp_path: Path) -> None:
    store, probed = Store(tmp_path), experiment(probes=["features"])
    finish(store, experiment(), 0.6)
    finish(store, probed, lines=records([0, 10, 20], 0.8))
    assert accuracies(runs_of(store, experiment())) == [0.6], "the fewest evaluations"
    assert accuracies(runs_of(store, probed)) == [0.8]


def test_without_a_request_the_seeds_of_a_cell_count_at_the_same_round(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(seed=0), lines=records([10, 20], 0.6))
    finish(store, experiment(seed=1, rounds=40), lines=records([10, 20], 0.7) + records([30, 40], 0.9))
    finish(store, experiment(seed=2), status="diverged")
    runs = runs_of(store)
    assert [run.rounds for run in runs] == [20, 20, 20]
    assert accuracies(runs) == [0.6, 0.7, None]
    assert [run.state for run in runs] == ["done", "done", "diverged"]


def test_a_run_that_diverged_after_the_requested_round_has_a_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    attempt = claim(store, experiment(rounds=100))
    attempt.adopt(None)
    for line in records([10, 20], 0.6):
        attempt.record(line)
    attempt.publish(status="diverged", rounds=27, seconds=1, fingerprint="e3713c9c6ae47b99", numerics={})
    attempt.end("ok")
    assert [run.state for run in runs_of(store, experiment(rounds=20))] == ["done"]
    assert [run.state for run in runs_of(store, experiment(rounds=27, eval_every=27))] == ["diverged"]
    assert [run.state for run in runs_of(store, experiment(rounds=100))] == ["diverged"]


def test_unfinished_runs_have_a_state_and_a_reason(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fail(store, experiment(seed=1), "cuda_oom")
    claim(store, experiment(seed=2))
    runs = runs_of(store, *(experiment(seed=seed) for seed in range(3)))
    assert [(run.state, run.failure) for run in runs] == [("pending", None), ("failed", "cuda_oom"), ("running", None)]
    assert len(runs_of(store)) == 2, "without a request, every run that was started is there"


def test_a_result_without_its_metrics_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(rounds=40), 0.9)
    (store.run(experiment().run_id).path / "attempts" / "0001" / "metrics.jsonl").write_text("{}\n")
    assert [run.state for run in runs_of(store, experiment(rounds=20))] == ["damaged"]


def test_retired_and_unreadable_runs_are_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        finish(store, experiment(seed=seed), 0.9)
    for seed in range(3, 5):
        finish(store, experiment(seed=seed), 0.9)
        (store.run(experiment(seed=seed).run_id).path / "experiment.json").write_text("{bad")
    retired = store.run(experiment(seed=1).run_id).path
    retired.rename(retired.with_name(retired.name[:2] + "0" * 14))
    forget_norm(store, experiment(seed=2))
    collection = collect(StoreSource(store))
    assert [run.experiment.seed for run in collection.runs] == [0]
    assert sorted(collection.left_out) == [
        "1 run of an earlier version of a component, whose numbers are retired",
        FORGOTTEN,
        "2 runs whose experiment this version of flbench cannot read; flbench verify says why",
    ]


def test_a_plugin_whose_probe_is_not_recorded_has_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), environment={"plugins": "mine=1"})
    monkeypatch.setattr("flbench.report.runs.plugins_of", lambda raw: "mine=1" + " probing=1" * bool(raw["probes"]))
    (run,) = runs_of(store, experiment(probes=["features"]))
    assert run.state == "done" and run.changed_plugins == ()


def test_the_tidy_frame_has_every_field_with_its_type(tmp_path: Path) -> None:
    store = Store(tmp_path)
    requests = [experiment(partition="dirichlet:0.1", lr=1.0), experiment(kind="centralized"), experiment(seed=5)]
    finish(store, requests[0], 0.5)
    finish(store, requests[1], 0.6)
    frame = dataframes.tidy(runs_of(store, *requests)).set_index("run_id")
    first, central, missing = (frame.loc[request.run_id] for request in requests)
    assert (first["partition"], first["partition.beta"], first["clients"], first["lr"]) == (
        "dirichlet:0.1",
        0.1,
        10,
        1.0,
    )
    assert (first["acc"], first["state"], first["fingerprint"]) == (0.5, "done", "e3713c9c6ae47b99")
    assert (first["numerics.device"], first["environment.torch"]) == ("cpu", "2.11.0")
    assert central[["partition", "method", "clients"]].isna().all()
    assert missing["state"] == "pending" and missing[["acc", "fingerprint"]].isna().all()
    assert (str(frame["lr"].dtype), str(frame["clients"].dtype), str(frame["bias"].dtype)) == (
        "float64",
        "Int64",
        "boolean",
    )
    assert "environment.host" not in frame, "an exported table names no machine"


def test_curves_have_one_row_an_evaluation_up_to_the_requested_round(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(rounds=40), lines=records([10, 20], 0.6) + records([30, 40], 0.8))
    source = StoreSource(store)
    curves = dataframes.curves(source, collect(source, [experiment()]).runs)
    assert list(curves["round"]) == [10, 20]
    assert list(curves["acc"]) == [0.3, 0.6]


def test_the_data_of_a_leaderboard_import_no_document_and_no_format() -> None:
    rooms = "[name for name in sys.modules if name.startswith(('flbench.report.page', 'flbench.report.write'))]"
    code = f"import sys, flbench.report.board, flbench.report.leaderboard; assert not {rooms}, {rooms}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_runs_with_few_evaluations_fall_back_to_the_last(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, experiment(), 0.6)
    (run,) = collect(StoreSource(store), select_by="tail").runs
    assert run.record is not None and run.record["acc"] == 0.6 and run.last is None


def test_of_different_counts_of_images_the_smaller_one_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for seed, tested in enumerate((1000, 10**9)):
        finish(store, experiment(seed=seed), samples=(100, tested), fingerprint="0" * 16)
    (cell,) = rows_of(cells_of(collect(StoreSource(store)).runs, "acc"))
    assert (cell.samples, cell.images) == ("100/1000", 1000)
