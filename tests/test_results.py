"""The committed leaderboard and figures equal those made from the committed results."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from flbench.exchange import exports
from tests.warm import warm_python

ROOT = Path(__file__).parents[1]


#: Pages that name the command which writes them: the leaderboard with its details, and reports of their own.
PAGES = tuple(
    f"docs/results/{name}.md"
    for name in (
        "provenance",
        "phase-diagram",
        "head-scale",
        "scale-or-geometry",
        "fedvls-mnist",
        "fedyogi-steps",
        "cifar10-ten-steps",
        "cifar10-tuned",
        "cifar10-full-length",
        "plateau",
        "fashion-mnist-long",
        "plateau-skew",
        "skew-fashion-mnist",
        "plateau-methods",
    )
)


#: Commands of pictures that no report has.
PICTURES = (
    "plot curves sweeps/plateau.yaml --results results/plateau.parquet --only partition=classes:1 --only head=linear "
    "--out docs/figures/readme/one-class.svg",
)


def command_of(page: str) -> list[str]:
    """Return the arguments of the command at the end of a page."""
    *_, code = (ROOT / page).read_text().split("```")[1::2]
    program, *arguments = shlex.split(code.removeprefix("sh\n"))
    assert program == "flbench"
    return arguments


@pytest.mark.nightly
def test_pages_and_figures_follow_from_the_results(tmp_path: Path) -> None:
    for folder in ("sweeps", "results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    # All programs share a user's font cache, and another program may have written it without matplotlib's fonts.
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path / "fonts")}
    environment.pop("FLBENCH_DATA", None)  # pictures of a data set are drawn where it is there
    for page in PAGES:
        command = [warm_python(), "-c", "from flbench.cli import main; main()", *command_of(page)]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    for picture in PICTURES:
        command = [warm_python(), "-c", "from flbench.cli import main; main()", *shlex.split(picture)]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "leaderboard.md").read_text() == (ROOT / "leaderboard.md").read_text()
    pages = {path.name: path.read_text() for path in (tmp_path / "docs/results").glob("*.md")}
    kept_pages = {path.name: path.read_text() for path in (ROOT / "docs/results").glob("*.md")}
    del kept_pages["README.md"]  # written by people
    assert pages == kept_pages
    made, kept = (
        {str(path.relative_to(root)): path.read_bytes() for path in (root / "docs/figures").rglob("*.svg")}
        for root in (tmp_path, ROOT)
    )
    assert sorted(made) == sorted(kept)
    assert [name for name in made if made[name] != kept[name]] == []


@pytest.mark.parametrize("name", ["quickstart", "cifar10", "feature_collapse", "fashion_mnist"])
def test_committed_results_can_be_read(name: str) -> None:
    """Read the small files; the leaderboard's test reads the others."""
    assert len(exports.read(ROOT / f"results/{name}.parquet")) > 10


def test_the_first_page_is_short() -> None:
    text = (ROOT / "leaderboard.md").read_text()
    assert len(text.encode()) <= 22_000 and text.count("\n") <= 175
    assert text.count("\n![") == 1


def test_the_figures_of_readme_exist() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text())
    assert pictures and all((ROOT / path).exists() for path in pictures)
