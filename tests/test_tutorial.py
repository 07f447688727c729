"""The commands of docs/tutorial.md, run in their order in an empty folder, and what they print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.warm import shell_environment, warm_python

PAGE = (Path(__file__).parents[1] / "docs/tutorial.md").read_text(encoding="utf-8")

#: How much numbers may differ from those of the page: other processors round differently.
TOLERANCE = 3
NUMBER = r"\d+(?:\.\d+)?"
BLOCK = r'(?:^<!-- exit: (\d) -->\n)?^```(\w+)(?: title="(.+?)")?\n(.*?)^```$'


class Block(NamedTuple):
    """A fenced block: the exit code in the comment above it, its language, the name of its file, its text."""

    exit_code: str
    language: str
    file: str
    text: str


def blocks() -> list[Block]:
    return [Block(*found) for found in re.findall(BLOCK, PAGE, re.MULTILINE | re.DOTALL)]


def pattern(line: str) -> str:
    """Return a line of the page as a pattern: any number for a number, any text for ``...``."""
    parts = re.split(rf"(\.\.\.|{NUMBER}|\s+)", line.strip())
    found = {"...": ".*"}
    return "".join(
        rf"({NUMBER})" if re.fullmatch(NUMBER, part) else r"\s+" if part.isspace() else found.get(part, re.escape(part))
        for part in parts
    )


def shown_in(line: str, output: list[str]) -> bool:
    """Return whether a line of the page is among the lines of the output, with about the same numbers."""
    bare = [float(number) for number in re.findall(NUMBER, line)]
    matches = (re.search(pattern(line), one) for one in output)
    return any(
        match and all(abs(float(a) - b) <= TOLERANCE for a, b in zip(match.groups(), bare, strict=True))
        for match in matches
    )


def test_lines_are_compared() -> None:
    output = ["round 10/50, acc 88.9 %, loss 0.5, 2.2 s", "x"]
    assert shown_in("round 10/50, acc 89.6 %, ...", output)
    assert not shown_in("round 10/50, acc 99.6 %, ...", output)
    assert not shown_in("round 10/50, accuracy 89.6 %, ...", output)


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    """Every command ends with the exit code of its block (0), and prints the lines of the text below it."""
    environment = shell_environment(tmp_path.with_name(f"{tmp_path.name}-programs")) | {"COLUMNS": "110"}
    printed: list[str] = []
    for exit_code, language, name, text in blocks():
        if language == "yaml":
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif language == "text":
            assert [line for line in text.splitlines() if not shown_in(line, printed)] == [], "\n".join(printed)
        else:
            command = ["bash", "-euc", text] if language == "sh" else [warm_python(), "-c", text]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == int(exit_code or 0), f"{text}\n{done.stdout}\n{done.stderr}"
            printed = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert (tmp_path / "lr.svg").stat().st_size > 1000
