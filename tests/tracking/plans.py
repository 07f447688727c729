"""Stores with a planned sweep of made-up runs, and `flbench` as a process with wandb."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

from flbench.config import Experiment
from flbench.planning import write_plan
from flbench.store import RunRequest, Store
from flbench.sweeps import Sweep, load_sweep
from tests.report.stores import finish
from tests.warm import warm_python

SPEC = """
version: 1
name: toy
base: {rounds: 20, eval_every: 5}
axes: {norm: [none, ln]}
seeds: [0, 1]
wandb: {project: papers, mode: offline}
"""

#: A made-up key; wandb expects 40 characters.
KEY = "0123456789abcdef" * 2 + "fedcba98"


@dataclass(frozen=True)
class Planned:
    """A store with one sweep in it."""

    store: Store
    sweep: Sweep
    plan: Path
    spec: Path

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return self.sweep.experiments

    @property
    def requests(self) -> dict[str, RunRequest]:
        return {experiment.run_id: RunRequest.of(experiment) for experiment in self.experiments}

    def metrics(self, experiment: Experiment) -> list[dict[str, Any]]:
        return self.store.run(experiment.run_id).metrics()


def planned(folder: Path, text: str = SPEC, *, done: bool = True) -> Planned:
    spec = folder / "toy.yaml"
    spec.write_text(text)
    sweep = load_sweep(spec)
    store = Store(folder / "store")
    plan = write_plan(store, sweep)
    for experiment in sweep.experiments if done else ():
        finish(store, experiment, acc=min(0.5 + experiment.seed / 10, 0.99))
    return Planned(store, sweep, plan, spec)


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a user who has not set up W&B."""
    gone = ("wandb_", "http_proxy", "https_proxy", "all_proxy")
    kept = {name: value for name, value in os.environ.items() if not name.lower().startswith(gone)}
    fonts = {"MPLCONFIGDIR": matplotlib.get_cachedir()}  # to draw figures without another search for fonts
    return {**kept, **fonts, "HOME": str(home), "NETRC": str(home / "netrc"), **more}


def flbench(
    *arguments: str | Path, env: dict[str, str], before: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, after the statements ``before``."""
    program = f"{before}\nfrom flbench.cli import main\nmain()"
    argv = [warm_python(), "-c", program, *map(str, arguments)]
    return subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL, **options
    )
