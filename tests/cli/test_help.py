"""What ``flbench`` prints without a command: its version and its help."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.commands import COMMANDS, GROUPS, RENAMED
from flbench.errors import UserError
from tests.start_up import heavy_imports

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_version_is_the_projects() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"flbench {tomllib.loads(PROJECT.read_text())['project']['version']}\n"


def test_help_says_whole_sentences_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    sections = re.findall(r"^(\w+):\n((?:  .+\n)+)", result.output, flags=re.MULTILINE)
    assert [title for title, _ in sections] == ["Options", *GROUPS]
    commands = [line for _, lines in sections[1:] for line in lines.splitlines()]
    assert [line.split()[0] for line in commands] == [*COMMANDS]
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("command", ["", "sweep", "data", "data list"])
def test_h_is_help(command: str) -> None:
    short, long = (CliRunner().invoke(app, [*command.split(), option]) for option in ("-h", "--help"))
    assert short.exit_code == 0 and short.output == long.output and "-h, --help" in short.output


SUBCOMMANDS = ("data list", "data download", "data verify", "data embed")


@pytest.mark.parametrize("command", [*sorted(COMMANDS), *SUBCOMMANDS])
def test_help_of_a_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: flbench {command}" in " ".join(result.output.split())
    assert not re.search(r"[{}]| range>", result.output), "as click writes what a value is"


@pytest.mark.slow  # a start of Python
def test_help_imports_no_numpy() -> None:
    """``--help`` takes as long as its imports; numpy, which brings the report and its papers, doubles them."""
    program = f"""
from typer.testing import CliRunner
from flbench.cli import app
for command in {[*COMMANDS, *SUBCOMMANDS]!r}:
    assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0
"""
    assert heavy_imports(program, ("numpy", "pandas", "torch", "matplotlib", "flbench.papers"))[0] == []


@pytest.mark.parametrize("command", ["", "sweep", "data", "data list"])
def test_help_of_a_name_is_that_of_its_option(command: str) -> None:
    word, option = (CliRunner().invoke(app, line) for line in (["help", *command.split()], [*command.split(), "-h"]))
    assert word.exit_code == 0 and word.output == option.output


def test_an_unknown_command_names_the_nearest() -> None:
    for line in (["swep"], ["help", "swep"]):
        error = CliRunner().invoke(app, line).exception
        assert isinstance(error, UserError) and "unknown command 'swep'; did you mean 'sweep'?" in str(error)


@pytest.mark.parametrize("command", [*sorted(COMMANDS), *SUBCOMMANDS])
def test_usage_has_names_in_capitals_and_brackets_where_they_may_be_left_out(command: str) -> None:
    usage = CliRunner().invoke(app, [*command.split(), "--help"]).output.split("\n\n")[0].split("[OPTIONS]")[1]
    for word in usage.split():
        assert re.fullmatch(r"(\[?)[A-Z]+(\|[A-Z]+|=VALUE|\.parquet|)*(\.\.\.)?(\]?)|\[ARGS\]\.\.\.", word), usage


def test_the_options_of_report_are_in_groups() -> None:
    output = CliRunner().invoke(app, ["report", "--help"]).output
    groups = dict(re.findall(r"^(\w[\w ]+):\n((?:  .+\n)+)", output, flags=re.MULTILINE))
    assert [*groups] == ["Arguments", "Which runs", "Files to write", "Ranking", "Further parts", "Options"]
    assert all(f"  --{name}" in groups["Files to write"] for name in ("out", "html", "csv", "figures", "latex"))


@pytest.mark.parametrize("command", [*sorted(COMMANDS), *SUBCOMMANDS])
def test_no_group_of_options_is_long_and_no_limit_that_only_finds_typing_mistakes_is_shown(command: str) -> None:
    output = CliRunner().invoke(app, [*command.split(), "--help"]).output
    groups = dict(re.findall(r"^(\w[\w ]+):\n((?:  .+\n)+)", output, flags=re.MULTILINE))
    assert {title: lines for title, lines in groups.items() if lines.count("\n  --") > 10} == {}
    assert not re.search(r"x<=10+\]", output)


@pytest.mark.parametrize(("former", "present"), RENAMED.items())
def test_a_former_name_leads_to_the_present_one(former: str, present: str) -> None:
    error = CliRunner().invoke(app, [former, "--help"]).exception
    assert isinstance(error, UserError) and error.exit_code == 2
    assert str(error) == f"flbench {former} has become: flbench {present}"
    assert present.split()[0] in COMMANDS and former not in COMMANDS
