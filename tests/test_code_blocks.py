"""The code blocks of README and docs: commands that flbench accepts, sweep files that load, Python that compiles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.core import TyperGroup

from flbench.cli import app
from flbench.sweeps import load_sweep
from flbench.sweeps.spec import SweepSpec

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/answers/*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in a language, in their order."""
    found = re.findall(r"^ *```(\w*).*?\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands() -> Iterator[tuple[Path, list[str]]]:
    """Yield a page and the arguments of a call of flbench in a shell block, without prompts, comments, redirections."""
    for page in PAGES:
        typed = [line for block in blocks(page, "sh") for line in block.splitlines()]
        shown = [line for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
        for line in [*typed, *shown]:
            words = shlex.split(line, comments=True)
            for start in [at for at, word in enumerate(words) if word == "flbench"]:
                end = next((at for at in range(start, len(words)) if words[at] in ("&&", "|", ">", ";")), len(words))
                yield page, words[start + 1 : end]


def parse(command: Any, name: str, arguments: list[str], parent: Any = None) -> None:
    """Parse arguments as the command line does, down to the last subcommand, without calling it."""
    context = command.make_context(name, arguments, parent=parent)
    if isinstance(context.command, TyperGroup) and (rest := [*context._protected_args, *context.args]):
        sub, found, left = context.command.resolve_command(context, rest)
        parse(found, sub, left, context)


def test_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, refused = typer.main.get_command(app), []
    for page, arguments in commands():
        try:
            parse(command, "flbench", arguments)
        except Exception as error:
            refused.append((page.name, arguments, error))
    assert refused == []


def test_the_sweep_files_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"sweeps/[\w/]+\.yaml", page.read_text(encoding="utf-8"))}
    missing = {name for name in named if not (ROOT / name).exists()}
    assert missing <= {"sweeps/mine.yaml", "sweeps/norms.yaml"}, "these are the user's"


def test_sweep_files_load(tmp_path: Path) -> None:
    """Whole files load, and parts of files have the keys and types of a sweep."""
    for page, block in [(path, block) for path in PAGES for block in blocks(path, "yaml")]:
        found = YAML(typ="safe").load(block)
        if isinstance(found, dict) and "version" in found and "axes" in found and "grids" not in found:
            file = tmp_path / f"{page.stem}.yaml"
            file.write_text(block, encoding="utf-8")
            assert load_sweep(file).experiments, page
        elif isinstance(found, dict) and set(found) <= set(SweepSpec.known_keys()) - {"version"}:
            assert SweepSpec.model_validate({"version": 1, "name": "part", **found}), page


def test_python_compiles() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            compile(block, page.name, "exec")
