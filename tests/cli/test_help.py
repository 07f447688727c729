"""What ``flbench`` prints without a command: its version and its help."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.commands import COMMANDS

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_version_is_the_projects() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"flbench {tomllib.loads(PROJECT.read_text())['project']['version']}\n"


def test_help_says_whole_sentences_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    commands = result.output.partition("Commands:\n")[2].splitlines()
    assert len(commands) == len(COMMANDS)
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


SUBCOMMANDS = ("data list", "data download", "data verify", "partition show")


@pytest.mark.parametrize("command", [*sorted({*COMMANDS} - {"doctor", "data", "partition"}), *SUBCOMMANDS])
def test_help_of_a_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: flbench {command}" in " ".join(result.output.split())
