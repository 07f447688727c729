"""Every script in ``benchmarks/`` runs at its smallest size; the numbers that it prints there mean nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"

#: The arguments of each script, and what it prints. ``{}`` is a temporary folder.
SCRIPTS = {
    "bench_dry_run": ("--rates 2 --repeats 1", r"dry-run, 5,000 runs: median \d"),
    "bench_halving": (
        "{}/sweep.yaml --store {}/store --rungs 2,4,6 --keep 1/2",
        r"2 of 2 races are complete\n  first half  rounds +\d",
    ),
    "bench_help": ("1", r"--help: median \d"),
    "bench_memory": ("--clients 2 --model mlp --methods fedavg --threads 1", r"fedavg, 2 clients x mlp.*: peak \d"),
    "bench_norms": ("--rounds 1 --norms ln --model lenet", r"\nln +\d"),
    "bench_operators": ("mlp --repeats 1 --steps 1", r"the default MLP: \d.* ms a step"),
    "bench_overhead": ("--data {}/none --rounds 20 --repeats 1", r"store and metrics are \d(.|\n)*CNN not measured"),
    "bench_projection": ("--workloads mlp --device cpu --repeats 1", r"mlp.*\d"),
    "bench_report": ("--runs 50 --repeats 1", r"report, 50 runs of 20 evaluations: median \d"),
    "bench_round": ("mlp --repeats 1 --rounds 1", r"\nwhole round +\d"),
    "settings": ("digits-mlp64 --repeats 1 --json", r'"runs": 3(.|\n)*"flbench, 3 runs together": '),
    "bench_store": ("--runs 1000 --workers 2 --seconds 5", r"1,000 runs: .*\d(.|\n)*target"),
    "bench_sweep": ("{}/sweep.yaml --workers 1 --plain-rounds 1 --repeats 1", r"\d"),
    "bench_sync": ("2 --mode offline", r"sync --mode offline: \d.* for n=2 runs"),
}

SWEEP = """
version: 1
name: small
base: {dataset: digits, model: {name: mlp, widths: [8]}, rounds: 6, eval_every: 2, E: 1, val_fraction: 0.2}
axes: {norm: [none, ln], lr: [0.01, 0.1]}
seeds: [0, 1, 2]
"""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)


def test_every_script_is_tried() -> None:
    assert set(SCRIPTS) == {script.stem for script in FOLDER.glob("bench_*.py")} | {"settings"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    (spec := tmp_path / "sweep.yaml").write_text(SWEEP)
    if name == "bench_halving":
        flbench = ("-c", "from flbench.cli import main; main()")
        assert run(*flbench, "sweep", spec, "--store", tmp_path / "store", "--backend", "inline").returncode == 0
    arguments, printed = SCRIPTS[name]
    script = ["-m", "benchmarks.settings"] if name == "settings" else [FOLDER / f"{name}.py"]
    done = run(*script, *arguments.replace("{}", str(tmp_path)).split())
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr  # 1: a target is missed
    assert re.search(printed, done.stdout), done.stdout
