"""``slurm/dev-cluster`` where no cluster runs; ``tests/slurm`` use one that does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "slurm" / "dev-cluster"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FLBENCH_SLURM_DIR": str(folder)}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env=environment)


def test_status_says_that_nothing_runs(tmp_path: Path) -> None:
    done = run(tmp_path / "cluster", "status")
    assert done.returncode == 1
    assert done.stdout == f"no cluster runs in {tmp_path}/cluster\n"


def test_stopping_what_does_not_run_is_no_mistake(tmp_path: Path) -> None:
    assert run(tmp_path / "cluster", "stop").returncode == 0
    assert not (tmp_path / "cluster").exists()


def test_shell_is_told_where_the_configuration_is(tmp_path: Path) -> None:
    done = run(tmp_path / "a cluster", "env")
    assert done.stdout == f"export SLURM_CONF='{tmp_path}/a cluster/slurm.conf'\n"
