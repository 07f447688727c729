"""``flbench new``: every skeleton works as it is written, and so does its test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import UserError

KINDS = ("method", "norm", "model", "dataset")


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "FLBENCH_STORE": str(folder / "runs"), "FLBENCH_DATA": str(folder / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_written_test_passes_and_the_component_runs(kind: str, tmp_path: Path) -> None:
    flbench = ("-c", "from flbench.cli import main; main()")
    said = run(tmp_path, *flbench, "new", kind, "my-own")
    images = tmp_path / "data" / "my-own"
    put = [f"  put images into {images}/train/CLASS/ and {images}/test/CLASS/"] if kind == "dataset" else []
    first, last = "  pytest test_my_own.py", f"  flbench --plugin my_own.py run {kind}=my-own"
    assert said.splitlines()[1:] == [first, *put, last]
    assert "passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_own.py")
    shown = run(tmp_path, *flbench, "--plugin", "my_own.py", "show", kind, "my-own")
    assert "flbench_plugin_my_own" in shown
    if kind != "dataset":
        run(tmp_path, *flbench, "--plugin", "my_own.py", "run", f"{kind}=my-own", "rounds=1", "E=1")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    arguments = ["new", kind, "mine", "--out", str(tmp_path)]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, UserError) and "test_mine.py exists" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]


@pytest.mark.parametrize(("name", "says"), [("fedavg", "there is a method of this name"), ("A/b", "expected small")])
def test_bad_names(name: str, says: str) -> None:
    error = CliRunner().invoke(app, ["new", "method", name]).exception
    assert isinstance(error, UserError) and says in str(error)
