"""``flbench runs``, ``flbench show run`` and ``flbench diff``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import UserError
from flbench.exchange import exports, transfer
from flbench.planning import write_plan
from flbench.report.differences import differences
from flbench.report.runs import collect
from flbench.report.stats import paired
from flbench.run_sources import StoreSource
from flbench.store import Lease, Store
from flbench.sweeps import load_sweep
from tests.report.stores import FORGOTTEN, accuracy, claim, experiment, fail, filled, finish, forget_norm, small_sweep


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Runs in all states: 24 done, one failed, one running, one planned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLBENCH_STORE", "runs")
    store = filled(tmp_path / "runs")
    fail(store, experiment(norm="bn"))
    running = claim(store, experiment(norm="bn", seed=1), Lease.here())
    running.record({"round": 10, "acc": 0.25})
    Path("plan.yaml").write_text("version: 1\nname: plan\nbase: {rounds: 20, eval_every: 10, norm: gn}\nseeds: [7]\n")
    write_plan(store, load_sweep("plan.yaml"))
    return store


def flbench(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.exception or done.output
    return done.stdout


def refusal(*arguments: str) -> str:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, UserError)
    return str(error)


def listed(*arguments: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(flbench("runs", *arguments, "--json"))
    return rows


def test_runs_that_cannot_be_read_are_noted(store: Store) -> None:
    forget_norm(store, small_sweep()[0])
    assert flbench("runs").splitlines()[-1] == f"left out: {FORGOTTEN}"
    done = CliRunner().invoke(app, ["runs", "--json"])
    assert len(json.loads(done.stdout)) == 26
    assert done.stderr == f"left out: {FORGOTTEN}\n"
    (plan,) = store.sweeps.rglob("plan.jsonl")
    plan.write_text(plan.read_text().replace('"gn"', '"of-tomorrow"'))
    assert flbench("runs", "plan").splitlines()[-1] == f"left out: {FORGOTTEN.replace('run', 'planned run', 1)}"


def test_every_run_is_listed_with_its_state(store: Store) -> None:
    states = [row["state"] for row in listed()]
    assert {state: states.count(state) for state in states} == {"pending": 1, "done": 24, "failed": 1, "running": 1}
    lines = flbench("runs").splitlines()
    assert lines[-1] == "27 runs; flbench show run ID shows one"
    (running,) = [line for line in lines if " running " in line]
    assert running.split()[-4:] == ["10/20", "acc", "25.00", "%"]
    assert any(" oom " in line and "fedavg bn" in line for line in lines), "the kind of its failure"
    first = flbench("runs", "--limit", "1").splitlines()[1]
    assert first.split() == lines[1].split(), "its name tells it from the runs that are cut off, too"


def test_filters_columns_order_and_limit(store: Store) -> None:
    rows = listed("--only", "norm=ln", "--only", "partition=classes:1", "--columns", "method,acc", "--sort=-acc")
    assert [row["acc"] for row in rows] == sorted((row["acc"] for row in rows), reverse=True)  # type: ignore[type-var]
    assert len(rows) == 6 and rows[0] == {"method": "scaffold", "acc": 0.77}
    assert len(listed("--state", "failed", "--state", "running")) == 2
    assert [row["seed"] for row in listed("plan")] == [7]
    assert len(listed(str(rows and listed("--limit", "1")[0]["run_id"])[:6])) == 1
    assert "did you mean 'acc'?" in refusal("runs", "--columns", "accc")
    assert "unknown state 'faild'; did you mean 'failed'?" in refusal("runs", "--state", "faild")
    assert "did you mean 'norm'?" in refusal("runs", "--only", "nrm=ln")


def test_a_condition_among_the_names_is_an_option(store: Store) -> None:
    assert refusal("runs", "plan", "norm=ln") == "norm=ln: conditions are options here: --only norm=ln"
    said = refusal("runs", "plan", "norm=lnn")
    assert said.startswith("--only norm=lnn: norm: unknown norm 'lnn'; did you mean 'ln'?")


def test_exported_files_are_listed_as_the_store(store: Store) -> None:
    exported, _ = transfer.export_runs(store, store.run_ids())
    exports.write(Path("some.parquet"), exported)
    key = ("run_id", "acc", "method", "norm")
    files = {tuple(row[name] for name in key) for row in listed("--results", "some.parquet")}
    assert files == {tuple(row[name] for name in key) for row in listed("--state", "done")}


def test_one_run_in_detail(store: Store) -> None:
    request = experiment(method="scaffold", norm="ln", partition="dirichlet:0.1", seed=9)
    finish(store, request, 0.87, probes={"mine": {"cosine": 0.12345, "each": [0.5] * 40, "few": [1, 2]}})
    facts = json.loads(flbench("show", "run", request.run_id[:10], "--json"))
    assert (facts["run_id"], facts["state"], facts["rounds"]) == (request.run_id, "done", 20)
    assert facts["changed"].keys() == {"rounds", "method", "norm", "partition", "seed"}
    assert [record["round"] for record in facts["records"]] == [10, 20]
    assert [attempt["ended"] for attempt in facts["attempts"]] == ["ok"]
    shown = flbench("show", "run", request.run_id[:10])
    for text in ("scaffold", "dirichlet:0.1", "acc           87.00 %", "Test CPU", facts["directory"], "round 20/20"):
        assert text in shown
    lines = [line.split(maxsplit=1) for line in shown.splitlines()]
    probes = {line[0]: line[1].strip() for line in lines if line[:1] and line[0].startswith("mine.")}
    assert probes == {"mine.cosine": "0.1235", "mine.few": "1, 2", "mine.each": "40 numbers from 0.5 to 0.5"}
    pending = load_sweep("plan.yaml").experiments[0].run_id
    assert "no worker has started it yet" in flbench("show", "run", pending)
    assert "give the beginning of a run's id" in refusal("show", "run")
    assert "expected the beginning of a run's id" in refusal("show", "run", "zzz")


def test_conditions_are_paired_by_all_other_fields(store: Store) -> None:
    found = json.loads(flbench("diff", "norm=none", "norm=ln", "--json"))
    assert found["fields"] == {"norm": {"a": ["none"], "b": ["ln"]}}
    assert (found["pairs"], len(found["cells"]), found["unpaired"]) == (12, 4, {"a": 0, "b": 0})
    assert [cell["difference"] for cell in found["cells"]] == pytest.approx([0.1] * 4)
    assert found["mean"] == pytest.approx(0.1) and found["interval"] == pytest.approx([0.1, 0.1])
    shown = flbench("diff", "norm=none", "norm=ln")
    assert "Mean of 4 configurations: +10.00 (%), over seeds" in shown and "12 pairs" in shown
    assert max(len(line) for line in shown.splitlines() if line.startswith("Mean of")) <= 80


def test_runs_and_their_cells(store: Store) -> None:
    first, second = experiment(norm="none", partition="classes:1"), experiment(norm="ln", partition="classes:1")
    one = json.loads(flbench("diff", first.run_id, second.run_id, "--json"))
    assert (one["pairs"], one["cells"][0]["half_width"], one["cells"][0]["p"]) == (1, None, None)
    other_seed = experiment(norm="none", partition="classes:1", seed=1)
    seeds = json.loads(flbench("diff", first.run_id, other_seed.run_id, "--json"))
    assert (seeds["fields"], seeds["pairs"]) == ({"seed": {"a": ["0"], "b": ["1"]}}, 1)
    cells = json.loads(flbench("diff", first.run_id, second.run_id, "--cells", "--json"))
    assert (cells["pairs"], len(cells["cells"])) == (3, 1)


def test_two_stores_and_what_is_not_in_both(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    for request in small_sweep()[:6]:
        finish(other, request, accuracy(request) + (0.02 if request.seed == 1 else 0))  # type: ignore[attr-defined]
    found = json.loads(flbench("diff", "runs", "other", "--json"))
    assert (found["fields"], found["pairs"], found["same"], found["unpaired"]["b"]) == ({}, 6, 4, 0)
    assert "4 of the same run with equal numbers" in flbench("diff", "runs", "other")


def test_the_differences_are_those_of_the_report(store: Store) -> None:
    source = StoreSource(store)
    sides = [
        collect(source, [experiment(norm=norm, lr=lr, seed=seed) for seed in range(4)]).runs
        for norm, lr in (("none", 0.01), ("ln", 0.01))
    ]
    (cell,) = differences(*sides, "acc").cells
    by_seed = [{run.experiment.seed: run.record["acc"] for run in side if run.record} for side in sides]
    assert cell.contrast.difference == paired(by_seed[1], by_seed[0])


def test_ambiguous_and_empty_sides_are_errors(store: Store) -> None:
    finish(store, experiment(norm="gn"))
    assert "runs have several partners" in refusal("diff", "norm=gn", "norm=[ln,none]")
    assert "norm=fn: no run" in refusal("diff", "norm=fn", "norm=ln")
    assert "did you mean 'acc'?" in refusal("diff", "norm=none", "norm=ln", "--metric", "accc")
    assert refusal("diff", "norm=none", "norm=lnx").startswith("norm=lnx: norm: unknown norm 'lnx'")
    assert refusal("diff", "kind={federated}", "norm=ln").startswith("kind={federated}: kind: ")
    assert refusal("diff", "norm=none", "norm=ln", "--only", "norm=lnx").startswith("--only norm=lnx: ")
