"""The examples of docs/extending.md work: as another package's, in a sweep and its report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

PAGE = (Path(__file__).parents[1] / "docs/extending.md").read_text()

SWEEP = """
version: 1
name: extended
base:
  dataset: squares
  clients: 3
  rounds: 2
  eval_every: 1
  batch_size: 4
  probes: [weights]
axes:
  model: [tiny-cnn, {name: mlp, widths: [8]}]
  method: [fedavg, {name: clipped, limit: 0.1}]
  norm: [none, max]
  partition: ["quantity:4"]
report: {rows: [method, norm], cols: [partition]}
"""


def examples() -> dict[str, list[tuple[str, str]]]:
    """Every whole file of the page by entry-point group: (name of the component, source)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for registry, name in re.findall(r'^@([A-Z]+)\.register\("([^"]+)"\)', source, re.MULTILINE):
            found.setdefault(f"flbench.{registry.lower()}", []).append((name, source))
    return found


def install(site: Path) -> None:
    """Write what an installer writes for a package with a module an example."""
    info = site / "extended-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extended\nVersion: 1\n")
    lines = []
    for group, members in examples().items():
        lines.append(f"[{group}]")
        for name, source in members:
            module = f"extended_{name.replace('-', '_')}"
            (site / f"{module}.py").write_text(source)
            lines.append(f"{name} = {module}")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def draw_squares(root: Path) -> None:
    for half, count in (("train", 12), ("test", 3)):
        for number, color in enumerate(("red", "green", "blue", "yellow")):
            folder = root / "squares" / half / color
            folder.mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (8, 8))
                image.paste(color, (index % 4, number, index % 4 + 4, number + 4))
                image.save(folder / f"{index}.png")


def flbench(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "site"),
        "FLBENCH_DATA": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", "from flbench.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_group_has_an_example() -> None:
    assert set(examples()) == {
        f"flbench.{name}" for name in ("methods", "norms", "models", "datasets", "partitions", "probes")
    }


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    install(tmp_path / "site")
    draw_squares(tmp_path)
    (tmp_path / "extended.yaml").write_text(SWEEP)
    flbench(tmp_path, "sweep", "extended.yaml", "--store", "runs", "--workers", "1")
    flbench(tmp_path, "report", "extended.yaml", "--store", "runs", "--out", "board.md")
    board = (tmp_path / "board.md").read_text()
    for row in (
        "| fedavg | none |",
        "| fedavg | max |",
        "| clipped(limit=0.1) | none |",
        "| clipped(limit=0.1) | max |",
    ):
        assert board.count(row) >= 2  # for each model
    finals = [json.loads(path.read_text())["final"] for path in (tmp_path / "runs").rglob("results/*.json")]
    assert len(finals) == 8
    assert len({final["loss"] for final in finals}) == 8  # every component has an effect
    assert all(final["probes"]["weights"]["norm"] > 0 for final in finals)
