from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_report import fill, flbench, here  # noqa: F401  the fixture

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:  # noqa: F811
    """Return a function that runs a command in a folder with a sweep and its finished runs.

    It returns the exit code and the output.
    """

    def command(*words: str) -> tuple[int, str]:
        code = flbench(monkeypatch, *words)
        said = capsys.readouterr()
        return code, said.out + said.err

    fill(here / "runs")
    return command
