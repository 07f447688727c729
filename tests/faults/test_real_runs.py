"""Faults during real training: Ctrl-C, kill -9 of a worker and of the orchestrator, then the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.faults.stub import recorded
from tests.limits import wait_until
from tests.warm import warm_python

SPEC = """
version: 1
name: real
base: {dataset: digits, model: mlp, partition: "classes:1", rounds: 300, eval_every: 10}
axes: {norm: [none, ln], method: [fedavg, scaffold]}
seeds: [0]
"""

BITS = """
version: 1
name: bits
base: {dataset: digits, partition: "classes:2", eval_every: 2}
grids:
  - set: {model: mlp, rounds: 10}
    axes: {norm: [none, bn], method: [fedavg, scaffold]}
  - set: {model: {name: mlp, widths: [1024, 1024]}, rounds: 4, method: scaffold}  # large enough for the loop executor
    axes: {norm: [none, ln, bn, gn]}
seeds: [0]
"""


def start(spec: Path, store: Store, *options: str) -> subprocess.Popen[str]:
    command = [warm_python(), "-c", "from flbench.cli import main; main()", "sweep", str(spec), *options]
    return subprocess.Popen([*command, "--store", str(store.root)], stdout=subprocess.PIPE, text=True)


def records(store: Store, spec: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the metrics of every run without times."""
    found = {}
    for experiment in load_sweep(spec).experiments:
        run = store.run(experiment.run_id)
        found[run.run_id] = [
            {key: value for key, value in record.items() if key != "seconds"}
            for record in run.metrics(run.result_for(experiment))
        ]
    return found


@pytest.mark.slow
def test_interrupted_sweep_has_the_results_of_an_uninterrupted_one(tmp_path: Path) -> None:
    spec = tmp_path / "real.yaml"
    spec.write_text(SPEC)
    disturbed, calm = Store(tmp_path / "disturbed"), Store(tmp_path / "calm")

    interrupted = start(spec, disturbed, "--workers", "2")
    wait_until(lambda: recorded(disturbed) >= 8)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=120)
    assert interrupted.returncode == 130
    assert list(disturbed.root.glob("runs/*/*/attempts/*/checkpoint/*.pt"))

    killed = start(spec, disturbed, "--workers", "2")
    before = recorded(disturbed)
    wait_until(lambda: len(disturbed.live_workers()) == 2 and recorded(disturbed) >= before + 20)
    os.kill(disturbed.live_workers()[0].lease.pid, signal.SIGKILL)
    time.sleep(0.5)
    killed.kill()
    killed.communicate()

    last = start(spec, disturbed, "--workers", "2")
    out, _ = last.communicate(timeout=120)
    assert last.returncode == 0, out
    attempts = {path: path.stat().st_mtime_ns for path in disturbed.root.glob("runs/*/*/attempts/*/metrics.jsonl")}

    undisturbed = start(spec, calm, "--workers", "2")
    undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0
    assert records(disturbed, spec) == records(calm, spec)

    again = start(spec, disturbed, "--workers", "2")
    out, _ = again.communicate(timeout=120)
    assert "nothing to launch" in out
    assert attempts == {
        path: path.stat().st_mtime_ns for path in disturbed.root.glob("runs/*/*/attempts/*/metrics.jsonl")
    }


@pytest.mark.slow
def test_neither_workers_nor_cores_change_a_bit(tmp_path: Path) -> None:
    """One or three workers and one or two cores a run, with a large MLP (loop executor) and a small one (stacked)."""
    spec = tmp_path / "bits.yaml"
    spec.write_text(BITS)
    found = []
    for number, options in enumerate((["--workers", "1"], ["--workers", "3"], ["--set", "resources.cpus=2"])):
        store = Store(tmp_path / str(number))
        process = start(spec, store, *options)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
        found.append(records(store, spec))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 8
