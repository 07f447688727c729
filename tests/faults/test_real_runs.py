"""The same faults with real training: Ctrl-C, kill -9 of a worker and of the orchestrator, then the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flbench.store import Store
from flbench.sweep import load_sweep
from tests.faults.test_kills import recorded, wait_until

SPEC = """
version: 1
name: real
base: {dataset: digits, model: mlp, partition: "classes:1", rounds: 300, eval_every: 10}
axes: {norm: [none, ln], method: [fedavg, scaffold]}
seeds: [0]
"""


def start(spec: Path, store: Store) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from flbench.cli import main; main()", "sweep", str(spec), "--workers", "2"]
    return subprocess.Popen([*command, "--store", str(store.root)], stdout=subprocess.PIPE, text=True)


def records(store: Store, spec: Path) -> dict[str, list[dict[str, Any]]]:
    """The metrics of every run, times apart."""
    found = {}
    for experiment in load_sweep(spec).experiments:
        run = store.run(experiment.run_id)
        found[run.run_id] = [
            {key: value for key, value in record.items() if key != "seconds"}
            for record in run.metrics(run.result_for(experiment))
        ]
    return found


@pytest.mark.slow
def test_disturbed_sweep_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    spec = tmp_path / "real.yaml"
    spec.write_text(SPEC)
    disturbed, calm = Store(tmp_path / "disturbed"), Store(tmp_path / "calm")

    interrupted = start(spec, disturbed)
    wait_until(lambda: recorded(disturbed) >= 8, 60)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert list(disturbed.root.glob("runs/*/*/attempts/*/checkpoint/*.pt"))

    killed = start(spec, disturbed)
    before = recorded(disturbed)
    wait_until(lambda: len(disturbed.live_workers()) == 2 and recorded(disturbed) >= before + 20, 60)
    os.kill(disturbed.live_workers()[0].lease.pid, signal.SIGKILL)
    time.sleep(0.5)
    killed.kill()
    killed.communicate()

    last = start(spec, disturbed)
    out, _ = last.communicate(timeout=120)
    assert last.returncode == 0, out
    attempts = {path: path.stat().st_mtime_ns for path in disturbed.root.glob("runs/*/*/attempts/*/metrics.jsonl")}

    undisturbed = start(spec, calm)
    undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0
    assert records(disturbed, spec) == records(calm, spec)

    again = start(spec, disturbed)
    out, _ = again.communicate(timeout=60)
    assert "nothing to launch" in out
    assert attempts == {
        path: path.stat().st_mtime_ns for path in disturbed.root.glob("runs/*/*/attempts/*/metrics.jsonl")
    }
