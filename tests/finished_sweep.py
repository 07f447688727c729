"""Fixtures of a small sweep that is finished: its file and its store in a working directory, and commands run there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flbench.cli import main
from flbench.sweeps import load_sweep
from tests.report.stores import filled

SPEC = """
version: 1
name: tiny
base: {rounds: 20, eval_every: 10}
axes: {norm: [none, ln], partition: ["classes:1", "iid"]}
seeds: [0, 1]
report: {rows: [norm], cols: [partition]}
"""

#: Runs a command and returns its exit code and what it prints to both streams.
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def runs_of_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the runs of ``SPEC``."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.yaml").write_text(SPEC)
    return filled(folder / "runs", list(load_sweep(folder / "tiny.yaml").experiments)).root


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_of_tiny: Path) -> Path:
    """A working directory with the file and the store of a sweep, and another file that differs in its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FLBENCH_PLUGINS", "")
    monkeypatch.delenv("FLBENCH_STORE", raising=False)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    (tmp_path / "other.yaml").write_text(SPEC.replace("tiny", "other"))
    shutil.copytree(runs_of_tiny, tmp_path / "runs")
    return tmp_path


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["flbench", *words])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out + said.err

    return command
