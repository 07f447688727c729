"""README: its links lead to files and headings, and the commands and the Python of its tour do what it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.test_code_blocks import ROOT, blocks
from tests.warm import shell_environment, warm_python

README = ROOT / "README.md"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def test_links_lead_to_files_and_headings() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", README.read_text(encoding="utf-8"))
    assert len(links) > 40
    for link in links:
        path, _, anchor = link.partition("#")
        page = ROOT / path if path else README
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link


@pytest.mark.slow
def test_the_tour(tmp_path: Path) -> None:
    """Every command ends with exit code 0, in the order of the page, on a sweep with few rounds."""
    environment = shell_environment(tmp_path.with_name(f"{tmp_path.name}-programs"))

    def execute(command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    tour = README.read_text(encoding="utf-8").partition("## A short tour")[2]
    commands = re.search(r"```sh\n(.*?)```", tour, re.DOTALL)
    assert commands
    seen = []
    for line in commands[1].splitlines():
        command, _, comment = line.partition("#")
        for word in re.findall(r"flbench show run ID|flbench diff A B|flbench show norm ln", comment):
            command += f" && {word}"  # a comment names further commands
        if " ID" in command or " A B" in command:
            ids = [run["run_id"] for run in json.loads(execute("flbench runs my_norms --json"))[:2]]
            command = command.replace(" ID", f" {ids[0]}").replace(" A B", f" {shlex.join(ids)}")
        execute(command)
        seen.append(command.split()[1])
        if command.startswith("flbench new sweep"):
            file = tmp_path / "sweeps/my_norms.yaml"
            text = file.read_text()
            assert "rounds: 100\n" in text
            file.write_text(text.replace("rounds: 100\n", "rounds: 10\n"))
    assert seen == ["new", "sweep", "sweep", "status", "runs", "report", "run", "show", "new"]
    assert (tmp_path / "my_norms.html").exists() and [*(tmp_path / "figures").glob("*.svg")]
    (python,) = [block for block in blocks(README, "python") if "flbench.model" in block]
    subprocess.run([warm_python(), "-c", python], cwd=tmp_path, env=environment, check=True)
