from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.dry_run import SHOWN, estimate, print_dry_run
from flbench.errors import DataMissing
from flbench.store import Store
from flbench.sweeps import Sweep, load_sweep
from tests.report.stores import finish

TEXT = """
version: 1
name: test
base: {rounds: 100}
grids:
  - axes: {norm: [none, ln, fn], lr: [0.1, 0.2]}
  - axes: {method: [fedyogi], lr: [0.1, 0.1]}
exclude: [{norm: fn, lr: 0.2}]
overrides: [{if: {norm: ln}, set: {E: 3}}]
seeds: [0, 1]
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    return load_sweep(path)


def test_the_arithmetic_is_spelled_out(sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_dry_run(sweep, tmp_path / "store", workers=2)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in (
        "grids[0]: 3 norm x 2 lr = 6 cells",
        "grids[1]: 1 method x 2 lr = 2 cells",
        "exclude[0]: {norm: fn, lr: 0.2} leaves out 1 cell",
        "overrides[0]: {norm: ln} gets {E: 3} in 2 cells",
        "duplicates: 1 cell of a grid equal earlier ones",
        "total: 6 cells x 2 seeds = 12 runs",
        "remaining time: not known until a run of this sweep has finished",
    ):
        assert line in lines
    assert any(line.endswith("0 of 12 runs; to run: 12") for line in lines)


def test_the_command_writes_nothing_and_finds_finished_runs(sweep: Sweep, tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = ["sweep", str(sweep.path), "--dry-run", "--json", "--store", str(store)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert not store.exists()
    facts = json.loads(done.stdout)
    assert facts["arithmetic"] == json.loads(json.dumps(dataclasses.asdict(sweep.arithmetic)))
    assert facts["spec_hash"] == sweep.spec_hash
    assert (facts["runs"], facts["done"], facts["missing"], facts["estimated_seconds"]) == (12, 0, 12, None)
    assert facts["varying"] == ["norm", "lr", "method", "local_steps"]
    first: dict[str, Any] = {"norm": "none", "lr": "0.1", "method": "fedavg", "local_steps": "10"}
    assert facts["cells"][0] == {"cell_id": sweep.experiments[0].cell_id, "values": first, "runs": 2, "done": 0}
    finish(Store(store), sweep.experiments[0])
    finish(Store(store), sweep.experiments[3].model_copy(update={"rounds": 20}))  # too short
    facts = json.loads(CliRunner().invoke(app, command).stdout)
    assert (facts["done"], facts["missing"]) == (1, 11)
    assert [cell["done"] for cell in facts["cells"]] == [1, 0, 0, 0, 0, 0]
    assert facts["estimated_seconds"] > 0


def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], axes: str) -> list[str]:
    (path := tmp_path / "other.yaml").write_text(f"version: 1\nname: other\naxes: {axes}\n")
    print_dry_run(load_sweep(path), tmp_path / "store")
    return capsys.readouterr().out.splitlines()


def test_a_long_list_of_cells_is_cut_in_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(tmp_path, capsys, "{batch_size: {range: [1, 1001]}}")
    assert len(lines) < SHOWN + 10
    assert any("..." in line for line in lines) and any(line.startswith("1,000  1000 ") for line in lines)


def test_a_participation_that_is_no_whole_number_of_clients_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(tmp_path, capsys, "{clients: [10, 25, 30], participation: [0.1, 0.3, 1], lr: [0.1, 0.2]}")
    assert [line.strip() for line in lines if line.startswith("  participation ")] == [
        "participation 0.1 of 25 clients is rounded to 2 of 25 in a round",
        "participation 0.3 of 25 clients is rounded to 8 of 25 in a round",
    ]


def test_the_estimate_rests_on_finished_runs(sweep: Sweep) -> None:
    runs = sweep.experiments
    assert estimate(runs, runs, {}, 2) is None
    assert estimate(runs, [], {}, 2) == 0.0
    plain = [run for run in runs if run.norm.name == "none" and run.local_steps == 10 and run.method.name == "fedavg"]
    # One run measured: its likes take as long, 100 rounds each.
    assert estimate(runs, plain[1:], {plain[0].run_id: 0.02}, 1) == pytest.approx(0.02 * 100 * (len(plain) - 1))
    # Others in proportion to their work: 3 local steps instead of 10.
    ln = [run for run in runs if run.norm.name == "ln"]
    assert estimate(runs, ln, {plain[0].run_id: 0.02}, 1) == pytest.approx(0.006 * 100 * len(ln))
    assert estimate(runs, ln, {plain[0].run_id: 0.02}, 2) == pytest.approx(0.006 * 100 * len(ln) / 2)
    # No more workers than runs.
    assert estimate(runs, ln[:1], {plain[0].run_id: 0.02}, 8) == pytest.approx(0.6)


@pytest.mark.parametrize("dataset", ["cifar10", "folder:none"])
def test_missing_data_are_named_as_the_sweep_itself_does(dataset: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"version: 1\nname: missing\nbase: {{dataset: '{dataset}', partition: iid}}\n")
    sweep = ["sweep", str(path), "--data", str(tmp_path), "--store", str(tmp_path / "store")]
    problem = CliRunner().invoke(app, sweep).exception
    assert isinstance(problem, DataMissing) and f"the data set {dataset} is missing" in str(problem)
    for options in (["--dry-run"], ["--dry-run", "--json"]):
        done = CliRunner().invoke(app, [*sweep, *options])
        assert done.exit_code == 0
        assert done.stderr == f"without --dry-run, this sweep cannot start: {problem}\n"
    assert not (tmp_path / "store").exists()
