"""Every script in ``benchmarks/`` runs at its smallest size; the numbers that it prints there mean nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import warm_python

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"

#: The arguments of each script, and what it prints. ``{}`` is a temporary folder.
SCRIPTS = {
    "acceptance": ("--device cpu", r"no CUDA device is in use"),
    "commands": ("dry-run --rates 2 --repeats 1", r"dry-run, 5,000 runs: median \d"),
    "error_rates": ("--help", r"how often reports are wrong"),  # its table has a test of its own
    "executors": ("mlp --repeats 1 --device cpu", r"\nplain, DataLoader +fp32 +1 +1 +\d"),
    "halving": (
        "{}/sweep.yaml --store {}/store --rungs 2,4,6 --keep 1/2",
        r"2 of 2 races are complete\n  first half  rounds +\d",
    ),
    "memory": ("--clients 2 --model mlp --methods fedavg --threads 1", r"fedavg, 2 clients x mlp.*: peak \d"),
    "methods": ("mlp --methods feddyn --repeats 1 --device cpu", r"\nstacked +feddyn +\d"),
    "norms": ("--repeats 1 --norms ln --model lenet", r"\nln +\d"),
    "operators": ("mlp --repeats 1 --steps 1", r"\nthe step +\d"),
    "overhead": ("--data {}/none --rounds 20 --repeats 1", r"store and metrics are \d(.|\n)*CNN not measured"),
    "probes": ("mlp --repeats 1 --device cpu", r"\ndrift +\d(.|\n)*all probes +\d"),
    "projection": ("mlp E=1 --device cpu --repeats 1", r"\nmlp +fp32 +3 +\d"),
    "round": ("mlp norm=ln --repeats 1 --rounds 1", r"\nwhole round +\d"),
    "settings": ("digits-mlp64 --repeats 1 --json", r'"runs": 3(.|\n)*"flbench, 3 runs together": '),
    "speedups": ("--help", r"pfl-research, fluke and Flower"),  # anything else downloads gigabytes
    "stack_or_loop": ("--help", r"the table of ``auto``"),  # anything else takes a quarter of an hour
    "store": ("--runs 1000 --workers 2 --seconds 5", r"1,000 runs: .*\d(.|\n)*target"),
    "sweep": ("{}/sweep.yaml --workers 1 --plain-rounds 1 --repeats 1", r"\nplain loop, loader, one run at a time +\d"),
    "sync": ("2 --mode offline", r"sync --mode offline: \d.* for n=2 runs"),
}

#: What ends as one message of these scripts.
REFUSED = {
    "executors": ("digit", "did you mean 'digits'?"),
    "methods": ("digits --methods fedavg,feddin", "did you mean 'feddyn'?"),
    "probes": ("mlp norm=lnn", "did you mean 'ln'?"),
    "settings": ("digits-mlp46", "did you mean 'digits-mlp64'?"),
}

SWEEP = """
version: 1
name: small
base: {dataset: digits, model: {name: mlp, widths: [8]}, rounds: 6, eval_every: 2, E: 1, val_fraction: 0.2}
axes: {norm: [none, ln], lr: [0.01, 0.1]}
seeds: [0, 1, 2]
"""


def run(*command: str | Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([python, *command], env=environment, cwd=ROOT, capture_output=True, text=True)


def test_every_script_is_tried() -> None:
    assert set(SCRIPTS) == {
        path.stem for path in FOLDER.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()
    }


def test_scripts_that_pages_name_exist() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    text = "\n".join(page.read_text() for page in pages)
    named = set(re.findall(r"(?<!tests/)benchmarks[./](\w+)(?:\.py|`| )", text))
    assert named - {"peers"} <= set(SCRIPTS) | {"NAME"} and len(named) > 10


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    (spec := tmp_path / "sweep.yaml").write_text(SWEEP)
    if name == "halving":
        flbench = ("-c", "from flbench.cli import main; main()")
        assert run(*flbench, "sweep", spec, "--store", tmp_path / "store", "--backend", "inline").returncode == 0
    arguments, printed = SCRIPTS[name]
    done = run("-m", f"benchmarks.{name}", *arguments.replace("{}", str(tmp_path)).split())
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, done.stderr  # 1: a target is missed
    assert re.search(printed, done.stdout + done.stderr), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_exist_is_one_message(name: str) -> None:
    arguments, message = REFUSED[name]
    done = run("-m", f"benchmarks.{name}", *arguments.split(), python=warm_python())
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
