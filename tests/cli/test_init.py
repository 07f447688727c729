"""``flbench init``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import UserError
from flbench.sweeps import load_sweep


def test_the_written_sweep_is_valid_also_with_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", "mine"])
    assert result.stdout == "wrote sweeps/mine.yaml: 24 cells, 72 runs; next: flbench sweep mine --dry-run\n"
    path = tmp_path / "sweeps/mine.yaml"
    assert load_sweep("mine").name == "mine"
    text = path.read_text()
    examples = text.replace("# exclude:", "exclude:").replace("# overrides:", "overrides:").replace("#   - ", "  - ")
    path.write_text(examples)
    assert load_sweep("mine").arithmetic.cells == 20
    for arguments, message in (("mine",), "exists; choose another name"), (("a/b",), "expected letters, digits"):
        error = CliRunner().invoke(app, ["init", *arguments]).exception
        assert isinstance(error, UserError) and message in str(error)
    assert path.read_text() == examples
