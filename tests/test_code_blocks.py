"""The code blocks of README and docs: commands that flbench accepts, sweep files that load, Python that compiles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from ruamel.yaml import YAML

from flbench.cli import app
from flbench.sweeps import load_sweep
from flbench.sweeps.spec import SweepSpec

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "docs/results/README.md"]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in a language, in their order."""
    found = re.findall(r"^ *```(\w*).*?\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands() -> Iterator[Any]:
    """Yield the arguments of every call of flbench in a shell block, without prompts, comments and redirections."""
    for page in PAGES:
        typed = [line for block in blocks(page, "sh") for line in block.splitlines()]
        shown = [line for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
        for line in [*typed, *shown]:
            words = shlex.split(line, comments=True)
            for start in [at for at, word in enumerate(words) if word == "flbench"]:
                end = next((at for at in range(start, len(words)) if words[at] in ("&&", "|", ">", ";")), len(words))
                arguments = words[start + 1 : end]
                yield pytest.param(arguments, id=f"{page.stem}: {' '.join(arguments)}"[:80])


def parse(command: Any, name: str, arguments: list[str], parent: Any = None) -> None:
    """Parse arguments as the command line does, down to the last subcommand, without calling it."""
    context = command.make_context(name, arguments, parent=parent)
    if isinstance(context.command, click.Group) and (rest := [*context._protected_args, *context.args]):
        sub, found, left = context.command.resolve_command(context, rest)
        parse(found, sub, left, context)


@pytest.mark.parametrize("arguments", list(commands()))
def test_commands_parse(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    parse(typer.main.get_command(app), "flbench", arguments)


def test_the_sweep_files_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"sweeps/[\w/]+\.yaml", page.read_text(encoding="utf-8"))}
    missing = {name for name in named if not (ROOT / name).exists()}
    assert missing <= {"sweeps/mine.yaml", "sweeps/norms.yaml"}, "these are the user's"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sweep_files_load(page: Path, tmp_path: Path) -> None:
    """Whole files load, and parts of files have the keys and types of a sweep."""
    for block in blocks(page, "yaml"):
        found = YAML(typ="safe").load(block)
        if isinstance(found, dict) and "version" in found and "axes" in found and "grids" not in found:
            file = tmp_path / "sweep.yaml"
            file.write_text(block, encoding="utf-8")
            assert load_sweep(file).experiments
        elif isinstance(found, dict) and set(found) <= set(SweepSpec.known_keys()) - {"version"}:
            assert SweepSpec.model_validate({"version": 1, "name": "part", **found})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")
