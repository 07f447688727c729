"""Sweeps whose runs train together or one at a time have the same leaderboard, also after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from flbench.store import Store
from tests.faults.stub import recorded
from tests.limits import wait_until
from tests.warm import warm_python

SPEC = """
version: 1
name: together
base: {dataset: digits, model: {name: mlp, widths: [16]}, partition: "dirichlet:0.1", E: 3, rounds: 100, eval_every: 4}
axes:
  method: [fedavg, scaffold, {name: fedprox, mu: 0.01}, {name: fedprox, mu: 1.0}]
  norm: [none, bn]
  lr: [0.01, 0.3, 1000]
seeds: [0, 1]
"""


def sweep(spec: Path, store: Path, *options: str) -> subprocess.Popen[str]:
    command = [warm_python(), "-c", "from flbench.cli import main; main()", "sweep", str(spec), *options]
    return subprocess.Popen([*command, "--store", str(store)], stdout=subprocess.PIPE, text=True)


def leaderboard(store: Path) -> str:
    """Return the leaderboard without its provenance, which has times and machines."""
    (path,) = store.glob("sweeps/together/*/leaderboard.md")
    tables, provenance, _ = path.read_text().partition("## Provenance")
    assert provenance
    return tables


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "together.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def alone(spec: Path) -> str:
    """Return the leaderboard of runs that trained one at a time."""
    store = spec.parent / "alone"
    done = sweep(spec, store, "--set", "resources.fuse=1", "--workers", "2")
    out, _ = done.communicate(timeout=300)
    assert done.returncode == 0, out
    assert "diverged" in leaderboard(store)
    return leaderboard(store)


@pytest.mark.slow
def test_a_fused_sweep_has_the_leaderboard_of_single_runs(spec: Path, alone: str, tmp_path: Path) -> None:
    done = sweep(spec, tmp_path, "--workers", "1")
    out, _ = done.communicate(timeout=300)
    assert done.returncode == 0, out
    assert leaderboard(tmp_path) == alone


@pytest.mark.slow
def test_a_killed_group_resumes_in_groups_of_another_width(spec: Path, alone: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    stopped = sweep(spec, tmp_path, "--workers", "1")
    wait_until(lambda: recorded(store) >= 12)
    stopped.send_signal(signal.SIGINT)
    stopped.communicate(timeout=120)
    ends = [json.loads(path.read_text())["kind"] for path in tmp_path.glob("runs/*/*/attempts/*/exit.json")]
    assert ends.count("interrupted") > 1, "a group was stopped, not a run"

    killed = sweep(spec, tmp_path, "--workers", "1", "--set", "resources.fuse=2")
    before = recorded(store)
    wait_until(lambda: recorded(store) >= before + 8)
    os.kill(store.live_workers()[0].lease.pid, signal.SIGKILL)
    killed.kill()
    killed.communicate()

    last = sweep(spec, tmp_path, "--workers", "2", "--set", "resources.fuse=30")
    out, _ = last.communicate(timeout=300)
    assert last.returncode == 0, out
    assert leaderboard(tmp_path) == alone
