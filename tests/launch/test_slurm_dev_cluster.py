"""``slurm/dev-cluster`` without a running cluster; ``tests/slurm`` uses a running one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "slurm" / "dev-cluster"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FLBENCH_SLURM_DIR": str(folder)}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env=environment)


def test_status_reports_that_nothing_runs(tmp_path: Path) -> None:
    done = run(tmp_path / "cluster", "status")
    assert done.returncode == 1
    assert done.stdout == f"no cluster runs in {tmp_path}/cluster\n"


def test_stopping_without_a_cluster_succeeds(tmp_path: Path) -> None:
    assert run(tmp_path / "cluster", "stop").returncode == 0
    assert not (tmp_path / "cluster").exists()


def test_env_prints_the_path_of_the_configuration(tmp_path: Path) -> None:
    done = run(tmp_path / "a cluster", "env")
    assert done.stdout == f"export SLURM_CONF='{tmp_path}/a cluster/slurm.conf'\n"
