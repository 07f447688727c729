from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flbench.cli import app
from flbench.errors import UserError
from flbench.planning import write_plan
from flbench.store import Store
from flbench.sweeps import load_sweep
from flbench.tracking.jobs import planned_sweep
from tests.report.stores import experiment, finish
from tests.tracking.plans import SPEC, planned
from tests.tracking.test_mirror import FakeSink


def sync(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["sync", *map(str, arguments)])


def facts(result: Result) -> list[dict[str, Any]]:
    return list(json.loads(result.stdout)["sweeps"])


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> FakeSink:
    """A list in place of W&B."""
    sink = FakeSink()
    monkeypatch.setattr("flbench.tracking.wandb_sink.WandbSink", lambda *_: sink)
    return sink


def test_all_sweeps_and_the_runs_of_no_sweep(tmp_path: Path, sink: FakeSink) -> None:
    toys = planned(tmp_path)
    finish(toys.store, single := experiment(seed=7))
    assert [end["new"] for end in facts(sync("toy", "--store", toys.store.root, "--json"))] == [4]
    assert [end["new"] for end in facts(sync(toys.spec, "--store", toys.store.root, "--json"))] == [0]
    (view,) = sink.sweeps
    assert (view.sweep, len(view.rows)) == ("toy", 2)
    (spec := tmp_path / "other.yaml").write_text(SPEC.replace("name: toy", "name: other"))
    (write_plan(toys.store, load_sweep(spec)) / "spec.yaml").write_text("{")
    result = sync("--store", toys.store.root, "--mode", "offline", "--json")
    assert result.exit_code == 1
    unreadable, toy, other = facts(result)
    assert unreadable["sweep"].startswith("other/") and unreadable["problem"]
    assert (toy["mirrored"], toy["total"], other["sweep"]) == (4, 4, "runs of no sweep")
    assert set(sink.runs()) == {single.run_id, *(run.run_id for run in toys.experiments)}


def test_what_keeps_wandb_off_is_one_line(tmp_path: Path, sink: FakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode of the sweep file, no login, no package: a failure only where the user has asked for it."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    toys = planned(tmp_path, SPEC.replace("mode: offline", "mode: off"))
    missing = "warning: nothing is mirrored: "
    for options, code, says in (
        ((), 0, "turned off"),
        (("--mode", "auto"), 0, "wandb login"),
        (("--mode", "online"), 1, "wandb login"),
        (("--mode", "auto", "--to", "wandb"), 1, f"{missing}not logged in"),
    ):
        result = sync("--store", toys.store.root, *options)
        assert (result.exit_code, says in result.stdout) == (code, True), options
    assert sink.sent == []
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = sync("--store", toys.store.root, "--mode", "offline")
    assert (result.exit_code, f"{missing}the package wandb cannot be imported" in result.stdout) == (1, True)


def test_the_mode_set_by_wandb_applies_to_the_next_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flbench.tracking.wandb_sink import isolate_environment

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_RUN_ID", "of-something-else")
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "ARTIFACT_DIR", "SILENT", "ERROR_REPORTING"):
        monkeypatch.setenv(f"WANDB_{name}", "")
    isolate_environment(tmp_path)
    assert os.environ["WANDB_MODE"] == "offline"
    assert os.environ["WANDB_DIR"] == str(tmp_path)
    assert "WANDB_RUN_ID" not in os.environ


COMMENTED = "# --set is explained below\n" + SPEC


def test_a_planned_sweep_is_loaded_with_its_options(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(COMMENTED)
    given = load_sweep(path, ["axes.lr=[0.1, 0.2]", "wandb.mode=off"], ["norm=ln"], 3)
    again = planned_sweep(write_plan(Store(tmp_path / "store"), given))
    assert (again.spec_hash, again.options) == (given.spec_hash, given.options)
    assert again.spec.wandb.mode == "off"


@pytest.mark.parametrize(
    ("text", "options"), [(SPEC, {"sets": ["wandb.mode=off"], "only": ["norm=ln"], "limit": 1}), (COMMENTED, {})]
)
def test_a_plan_of_an_earlier_flbench_has_its_options_as_comments(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(text)
    given = load_sweep(path, **options)
    plan = write_plan(Store(tmp_path / "store"), given)
    (plan / "options.json").unlink()
    (plan / "spec.yaml").write_text("".join(f"# {option}\n" for option in given.options) + text)
    again = planned_sweep(plan)
    assert (again.spec_hash, again.options) == (given.spec_hash, given.options)


@pytest.mark.parametrize("content", ["{", "{}", '{"options": 5}', '{"options": ["--limit x", [], "--set"]}'])
def test_damaged_options_of_a_plan_are_one_error_or_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(SPEC)
    for given in (load_sweep(path), load_sweep(path, ["axes.lr=[0.1, 0.2]"])):
        plan = write_plan(Store(tmp_path / "store"), given)
        (plan / "options.json").write_text(content)
        if given.options:
            with pytest.raises(UserError, match="not the sweep that was planned"):
                planned_sweep(plan)
        else:
            assert planned_sweep(plan).spec_hash == given.spec_hash


def test_an_empty_store_and_an_unknown_sweep_are_errors(tmp_path: Path) -> None:
    Store(tmp_path / "store")
    result = sync("--store", tmp_path / "store")
    assert "nothing to mirror" in str(result.exception)
    toys = planned(tmp_path)
    assert "toy" in str(sync("tox", "--store", toys.store.root).exception)
