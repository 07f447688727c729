"""``flbench new``: every skeleton works as it is written, a sweep also with its examples, a component with its test."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.new import Kind
from flbench.errors import UserError
from flbench.sweeps import load_sweep
from tests.warm import warm_python

KINDS = tuple(kind for kind in get_args(Kind) if kind != "sweep")


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [warm_python(), *command],
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
    lines = said.splitlines()[1:]
    note = lines.pop() if not lines[-1].startswith(" ") else ""
    assert ("--rerun" in note, "again" in note) == (kind == "metric", kind == "probe"), "what finished runs need"
    first, *between, last = lines
    assert (first, between) == ("  pytest test_my_own.py", put) and last.startswith("  flbench --plugin my_own.py ")
    assert "passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_own.py")
    if kind not in ("metric", "figure", "study", "launcher"):
        listed = "cohort" if kind == "sampler" else kind
        shown = run(tmp_path, *flbench, "--plugin", "my_own.py", "show", listed, "my-own")
        assert "flbench_plugin_my_own" in shown
    if " run " in last and kind != "dataset":
        run(tmp_path, *flbench, *shlex.split(last)[1:], "rounds=1")


def test_a_wheel_lacks_pytest_and_the_next_steps_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.cli.new.find_spec", lambda name: None)
    lines = CliRunner().invoke(app, ["new", "norm", "mine", "--out", str(tmp_path)]).stdout.splitlines()
    assert lines[1].endswith(" pytest") and "pip install" in lines[1]
    assert lines[2] == f"  pytest {tmp_path / 'test_mine.py'}"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    arguments = ["new", kind, "mine", "--out", str(tmp_path)]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, UserError) and "test_mine.py exists" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]


def test_the_written_sweep_is_valid_also_with_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "sweep", "mine"])
    assert result.stdout == "wrote sweeps/mine.yaml: 24 cells, 72 runs; next: flbench sweep mine --dry-run\n"
    path = tmp_path / "sweeps/mine.yaml"
    assert load_sweep("mine").name == "mine"
    text = path.read_text()
    examples = text.replace("# exclude:", "exclude:").replace("# overrides:", "overrides:").replace("#   - ", "  - ")
    path.write_text(examples)
    assert load_sweep("mine").arithmetic.cells == 20
    for name, message in ("mine", "exists; choose another name"), ("a/b", "expected letters, digits"):
        error = CliRunner().invoke(app, ["new", "sweep", name]).exception
        assert isinstance(error, UserError) and message in str(error)
    assert path.read_text() == examples
    assert CliRunner().invoke(app, ["new", "sweep", "mine", "--out", "there"]).exit_code == 0
    assert load_sweep("there/mine.yaml").arithmetic.cells == 24


@pytest.mark.parametrize(("name", "says"), [("fedavg", "there is a method of this name"), ("A/b", "expected small")])
def test_bad_names(name: str, says: str) -> None:
    error = CliRunner().invoke(app, ["new", "method", name]).exception
    assert isinstance(error, UserError) and says in str(error)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["new", "metrics", "mine"], "unknown value 'metrics'; did you mean 'metric'? known: metric, "),
        (
            ["run", "--executor", "stakced"],
            "did you mean 'stacked'? known: stacked, native, loop-onednn, auto, loop",
        ),
        (["run", "--threads", "some"], "a valid integer"),
    ],
)
def test_a_value_that_is_no_choice_has_the_nearest_one(command: list[str], says: str) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and says in result.stderr and "Value error" not in result.stderr
