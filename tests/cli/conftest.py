from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from flbench.launch.inline import InlineLauncher
from tests.faults.stub import OneByOne, execute
from tests.finished_sweep import here, run, runs_of_tiny  # noqa: F401  the fixtures


@pytest.fixture
def toy_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inline workers execute toys; the store is a new one."""
    launcher = partial(InlineLauncher, load=lambda _: OneByOne(execute))
    monkeypatch.setattr("flbench.launch.inline.InlineLauncher", launcher)
    monkeypatch.setenv("STUB_PAUSE", "0")
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
