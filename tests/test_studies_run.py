"""Studies use the same store, workers and commands as training, with the same guarantees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import flbench
from flbench.cli import app
from flbench.config import headline_of, parse_experiment
from flbench.execution_types import Outcome
from flbench.store import Lease, Store
from tests.test_execution import after, run

SHARPNESS = {"kind": "sharpness", "width": 12, "lr": 0.01, "rounds": 6, "eval_every": 2}
RANK = {"kind": "rank", "width": 8, "rounds": 6, "eval_every": 2, "normalized": "bn-rms", "gamma": 0.5}
DEEP = {
    **{"kind": "deep", "depth": 3, "width": 12, "samples": 128, "batch_size": 32, "lr": 0.05},
    **{"normalized": "bn", "pretrain_steps": 1, "rescale": True, "rounds": 6, "eval_every": 2},
}
KINDS = pytest.mark.parametrize("raw", [SHARPNESS, RANK, DEEP], ids=lambda raw: str(raw["kind"]))


@KINDS
def test_a_stopped_and_resumed_run_has_the_same_numbers(raw: dict[str, Any], tmp_path: Path) -> None:
    wanted = parse_experiment(raw)
    _, expected = run(Store(tmp_path / "undisturbed"), wanted)
    store = Store(tmp_path / "disturbed")
    for _ in range(2):
        assert run(store, wanted, after(2))[0].status == "stopped"
    outcome, found = run(store, wanted)
    assert outcome == Outcome("done", 6)
    assert found == expected
    assert [record["round"] for record in found] == [0, 2, 4, 6]
    assert all(record[headline_of(raw)] > 0 for record in found)
    assert len(store.run(wanted.run_id).attempts()) == 3


@KINDS
def test_an_extended_run_has_the_numbers_of_a_longer_one(raw: dict[str, Any], tmp_path: Path) -> None:
    short, long = parse_experiment({**raw, "rounds": 4}), parse_experiment({**raw, "rounds": 8})
    _, expected = run(Store(tmp_path / "long"), long)
    store = Store(tmp_path / "extended")
    run(store, short)
    assert long.run_id == short.run_id
    _, found = run(store, long)
    assert found == expected
    assert "resumed after round 4" in store.run(long.run_id).attempts()[-1].log_path.read_text()
    assert store.claim(short, Lease.here()) is None, "the longer run holds the shorter"


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ({"kind": "sharpness", "width": 12, "normalized": "mean-last"}, {"lambda_max"}),
        ({"kind": "sharpness", "width": 12, "spectrum": True}, {"lambda_max", "lambda_mean", "spectrum"}),
        ({"kind": "rank", "width": 8, "rounds": 0}, {"rank", "soft_rank_0.5"}),
        ({"kind": "deep", "depth": 2, "width": 8, "samples": 64}, {"rank", "ranks"}),
    ],
    ids=lambda value: str(value.get("kind")) if isinstance(value, dict) else "",
)
def test_without_rounds_there_is_one_evaluation(raw: dict[str, Any], names: set[str], tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), parse_experiment(raw)
    outcome, (record,) = run(store, wanted)
    assert outcome == Outcome("done", 0)
    assert record["round"] == 0 and names <= set(record)
    result = store.run(wanted.run_id).result_for(wanted)
    assert result is not None and (result.rounds, result.status) == (0, "done")
    assert result.seconds > 0, "looking is its work"
    assert result.final[headline_of(raw)] == record[headline_of(raw)]


def test_gradient_descent_far_above_the_rate_diverges_and_reports_the_round(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), parse_experiment({**SHARPNESS, "lr": 1e60, "rounds": 50})
    outcome, records = run(store, wanted)
    assert outcome.status == "diverged" and outcome.round < 10
    assert all(json.dumps(record, allow_nan=False) for record in records)
    result = store.run(wanted.run_id).result_for(wanted)
    assert result is not None and (result.status, result.rounds) == ("diverged", outcome.round)
    assert store.claim(wanted, Lease.here()) is None, "never tried again"


def test_a_run_of_python(tmp_path: Path) -> None:
    curve = flbench.run(store=tmp_path, device="cpu", **RANK)
    assert list(curve["round"]) == [0, 2, 4, 6]
    _, records = run(Store(tmp_path / "again"), parse_experiment(RANK))
    assert list(curve["rank"]) == [record["rank"] for record in records]


MIXED = """
version: 1
name: mixed
base: {eval_every: 2}
grids:
  - set: {kind: sharpness, width: 12}
    axes: {normalized: [none, mean-last]}
  - set: {kind: sharpness, width: 12, lr: 0.01, rounds: 4}
  - set: {kind: rank, width: 8, rounds: 4}
    axes: {normalized: [none, bn-rms]}
  - set: {kind: deep, depth: 2, width: 8, samples: 64, batch_size: 32, lr: 0.1, rounds: 2}
  - set: {kind: federated, model: {name: mlp, widths: [8]}, clients: 2, partition: iid, E: 1, rounds: 4}
    axes: {norm: [none, ln]}
"""

LABELS = {
    "sharpness none s0": "lambda_max",
    "sharpness mean-last s0": "lambda_max",
    "sharpness none lr=0.01 s0": "lambda_max",
    "rank none s0": "rank",
    "rank bn-rms s0": "rank",
    "deep none s0": "test_acc",
    "federated fedavg none s0": "acc",
    "federated fedavg ln s0": "acc",
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a store in which a worker executed a sweep of all kinds, and the output of the command."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "mixed.yaml").write_text(MIXED)
    done = call(folder, "sweep", str(folder / "mixed.yaml"), "--backend", "inline", "--set", "wandb.mode=off")
    return folder, done


def call(folder: Path, *arguments: str) -> str:
    env = {"FLBENCH_STORE": str(folder / "store"), "COLUMNS": "80"}
    result = CliRunner().invoke(app, list(arguments), env=env)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_mixed_sweep_is_summarized_by_headline_numbers(swept: tuple[Path, str]) -> None:
    folder, told = swept
    assert "mixed: 8 of 8 runs done" in told
    store = Store(folder / "store")
    assert [bool(store.run(run_id).results()) for run_id in store.run_ids()] == [True] * 8
    table = call(folder, "status", "mixed")
    assert [line for line in table.splitlines() if line.startswith("best cells")] != []
    for text in ("lambda_max", "effective rank", "test accuracy", " accuracy ", "mean-last", "bn-rms"):
        assert text in table.replace("  ", " "), text
    assert "nan" not in table.lower() and "None" not in table


def test_the_dry_run_has_a_table_for_each_kind(swept: tuple[Path, str]) -> None:
    told = call(swept[0], "sweep", str(swept[0] / "mixed.yaml"), "--dry-run")
    lines = [line.split() for line in told.splitlines()]
    assert ["sharpness:"] in lines and ["#", "normalized", "lr", "rounds", "done"] in lines
    assert ["2", "mean-last", "-", "0", "1/1"] in lines and ["3", "none", "0.01", "4", "1/1"] in lines
    assert ["rank:"] in lines and ["#", "normalized", "done"] in lines
    assert ["federated:"] in lines and ["#", "norm", "done"] in lines


def test_runs_are_named_by_the_fields_that_vary_within_their_kind(swept: tuple[Path, str]) -> None:
    from flbench.progress import Watch
    from flbench.store import read_plan

    store = Store(swept[0] / "store")
    (directory,) = store.sweep_dirs()
    entries = list(read_plan(directory / "plan.jsonl"))
    watch = Watch(store, entries, 1)
    watch.update()
    assert {watch._label(index): seen.metric for index, seen in watch.ended.items()} == LABELS
    assert all(seen.value is not None for seen in watch.ended.values())


def test_verify_computes_studies_again(swept: tuple[Path, str]) -> None:
    told = json.loads(call(swept[0], "verify", "--recompute", "8", "--json"))
    assert [one["verdict"] for one in told["recomputed"]] == ["same"] * 8


def test_run_prints_only_the_result_if_there_is_no_curve(tmp_path: Path) -> None:
    told = call(tmp_path, "run", "--device", "cpu", "kind=sharpness", "width=12")
    first, second = told.splitlines()
    assert first.startswith("lambda_max ") and "acc" not in first and "round" not in first
    assert second.startswith("Files: ")


def test_run_reports_the_progress_of_a_study(tmp_path: Path) -> None:
    fields = [f"{name}={value}" for name, value in RANK.items()]
    lines = call(tmp_path, "run", "--device", "cpu", *fields).splitlines()
    assert [line.split(", ")[0] for line in lines[:5]] == [
        "round 0/6",
        "round 2/6",
        "round 4/6",
        "round 6/6",
        "round 6",
    ]
    assert lines[0].split(", ")[1].startswith("rank ") and lines[4].split(", ")[1].startswith("rank ")
    told = json.loads(call(tmp_path, "run", "--device", "cpu", "--json", *fields))
    assert (told["metric"], told["computed"], told["rounds"]) == ("rank", False, 6)
    assert f"rank {told['final']['rank']:.4g}, " in lines[4]
