"""The examples of docs/extending.md work as components of another package, in a sweep and its report."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flbench.report.figures.drawing import FIGURES
from flbench.report.figures.kinds import draw, write_figures
from flbench.report.paper import figure_kinds
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.report.stores import experiment, finish, leaderboard_of
from tests.start_up import heavy_imports
from tests.warm import warm_python

PAGE = (Path(__file__).parents[1] / "docs/extending.md").read_text()

SWEEP = """
version: 1
name: extended
base:
  dataset: squares
  clients: 3
  participation: 0.67
  cohort: round-robin
  rounds: 2
  eval_every: 1
  batch_size: 4
  probes: [weights]
axes:
  model: [tiny-cnn, own-net, {name: mlp, widths: [8]}]
  method: [fedavg, {name: clipped, limit: 0.1}, halved]
  norm: [none, max]
  partition: ["geometric:4"]
exclude: [{model: own-net, norm: max}]
report: {rows: [method, norm], cols: [partition]}
"""


def examples() -> dict[str, list[tuple[str, str]]]:
    """Return the complete files of the page by entry-point group: (name of the component, source)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for registry, name in re.findall(r'^@([A-Z]+)\.register\("([^"]+)"\)', source, re.MULTILINE):
            found.setdefault(f"flbench.{registry.lower()}", []).append((name, source))
    return found


def install(site: Path) -> None:
    """Write what an installer writes for a package with one module an example."""
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


def flbench(folder: Path, *arguments: str, code: int = 0) -> str:
    """Return what a command prints that ends with this exit code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "site"),
        "FLBENCH_DATA": str(folder),
    }
    command = [warm_python(), "-c", "from flbench.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def source(heading: str) -> str:
    """Return the example below a heading."""
    return PAGE.partition(f"## {heading}\n")[2].partition("```python\n")[2].partition("```")[0]


def module(heading: str) -> dict[str, Any]:
    """Return the names that the example below a heading defines."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source(heading), heading, "exec"), names)
    return names


def test_a_program_of_ones_own_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the store is made
    names = module("Compare with a program of your own")
    assert names["difference"] < 1e-12


def test_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "runs")
    for clients, acc in ((5, 0.5), (10, 0.7)):
        finish(store, experiment(clients=clients, partition="iid"), acc)
    board = leaderboard_of(collect(StoreSource(store)), cols=("clients",))
    monkeypatch.setattr(FIGURES, "_entries", dict(FIGURES))
    monkeypatch.setattr(FIGURES, "_modules", dict(FIGURES._modules))
    module("A figure")
    names = list(figure_kinds([]))
    assert names.index("cost") == names.index("clients") + 1, "in the order of a report"
    kind = FIGURES["clients"]
    (picture,) = write_figures(board, tmp_path, [kind])
    assert picture.svg.name == "clients-digits-mlp.svg" and picture.svg.stat().st_size > 1000
    (drawing,) = draw(board, kind)
    (line,) = drawing.figure.axes[0].lines
    assert np.array(line.get_data()).tolist() == [[5, 10], [50, 70]]
    assert list(draw(leaderboard_of(collect(StoreSource(Store(tmp_path / "none")))), kind)) == []


@pytest.mark.slow
def test_a_figure_as_a_plug_in(tmp_path: Path) -> None:
    text = source("A figure")
    (tmp_path / "figure.py").write_text(text)
    (tmp_path / "faulty.py").write_text(text.replace('"clients"', '"faulty"').replace("100 *", "1 / 0 *"))
    (tmp_path / "taken.py").write_text(text.replace('"clients"', '"gains"'))
    for clients, acc in ((5, 0.5), (10, 0.7)):
        finish(Store(tmp_path / "runs"), experiment(clients=clients, partition="iid"), acc)
    drawn = ("plot", "clients", "--store", "runs", "--out", "out.svg")
    flbench(tmp_path, "--plugin", "figure.py", *drawn)
    assert (tmp_path / "out.svg").stat().st_size > 1000
    line = 1 + text[: text.index("100 *")].count("\n")
    for arguments, message in (
        (drawn, "unknown kind of figure 'clients'"),
        (("--plugin", "faulty.py", "plot", "faulty", *drawn[2:]), f"faulty.py:{line}: the figure 'faulty' raised Zero"),
        (("--plugin", "taken.py", *drawn), "taken.py:9: figure 'gains' is registered twice, in flbench.report"),
    ):
        assert message in flbench(tmp_path, *arguments, code=2)


@pytest.mark.slow
def test_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ``ssh`` by a script that runs its command on this machine."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$1" >>"{tmp_path}/called"\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "ssh.py").write_text(source("A launcher"))
    spec = "version: 1\nname: two\nbase: {rounds: 2, eval_every: 2}\naxes: {norm: [none, ln]}\nbackend: {kind: %s}\n"
    (tmp_path / "two.yaml").write_text(spec % f"ssh, hosts: [one, two], python: {warm_python()}")
    (tmp_path / "wrong.yaml").write_text(spec % "ssh, hosts: []")
    sweep = ("--plugin", "ssh.py", "sweep")
    assert "unknown kind of backend 'ssh'" in flbench(tmp_path, "sweep", "two.yaml", code=2)
    assert "wrong.yaml:5: backend: hosts: " in flbench(tmp_path, *sweep, "wrong.yaml", code=2)
    unknown = flbench(tmp_path, *sweep, "two.yaml", "--backend", "shh", code=2)
    assert "unknown backend 'shh'; did you mean 'ssh'" in unknown
    (tmp_path / "plain.yaml").write_text((tmp_path / "two.yaml").read_text().partition("backend")[0])
    assert "--backend ssh: hosts: " in flbench(tmp_path, *sweep, "plain.yaml", "--backend", "ssh", code=2)
    flbench(tmp_path, *sweep, "two.yaml", "--store", "runs")
    store, plan = Store(tmp_path / "runs"), load_sweep(tmp_path / "plain.yaml").experiments
    assert [store.run(one.run_id).state(one).status for one in plan] == ["done"] * 2
    assert set((tmp_path / "called").read_text().split()) <= {"one", "two"}


def test_the_hooks_of_methods() -> None:
    """Those that the page shows alone: a training by hand is FedAvg, and the head rests while the body moves."""
    import torch

    from flbench.methods.base import Method, tmap
    from tests.toys import largest_difference, toy_trainer, train

    methods = {}
    for name in ("rates", "train"):
        (text,) = re.findall(rf"```python\n(def {name}\(.*?)```", PAGE, re.DOTALL)
        names: dict[str, Any] = {"torch": torch, "tmap": tmap}
        exec(compile(text, name, "exec"), names)
        methods[name] = toy_trainer(type(name.title(), (Method,), {name: names[name]})(), steps=4)
    plain = toy_trainer(Method(), steps=4)
    train(1, plain, *methods.values())
    assert largest_difference(methods["train"].x, plain.x) < 1e-12
    assert largest_difference(methods["rates"].x, plain.x) > 1e-3


def test_every_group_has_an_example() -> None:
    assert set(examples()) == {
        f"flbench.{name}"
        for name in ("methods", "norms", "models", "datasets", "partitions", "samplers", "probes", "launchers")
    }


#: The folders in which components are found.
FOLDERS = {
    "flbench.methods": "flbench.methods",
    "flbench.norms": "flbench.models.norms",
    "flbench.models": "flbench.models.architectures",
    "flbench.partitions": "flbench.data.partition",
    "flbench.samplers": "flbench.data.cohorts",
    "flbench.probes": "flbench.probes",
}


def test_a_file_in_its_folder_is_all_it_takes(tmp_path: Path) -> None:
    """Nothing names it, and finding it imports nothing heavy."""
    lines = ["import importlib", "from flbench import registry", "from flbench.report.figures.drawing import FIGURES"]
    sources = {group: examples()[group][0] for group in FOLDERS} | {"flbench.figures": ("clients", source("A figure"))}
    for group, (name, text) in sources.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "example.py").write_text(text)
        package, kind = FOLDERS.get(group, "flbench.report.figures"), group.partition(".")[2].upper()
        lines.append(f"importlib.import_module({package!r}).__path__.append({str(tmp_path / group)!r})")
        lines.append(f"assert {name!r} in {'FIGURES' if kind == 'FIGURES' else f'registry.{kind}.classes'}")
    assert heavy_imports("\n".join(lines))[0] == []


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
        "| halved | none |",
    ):
        assert board.count(row) >= 2  # for each model
    finals = [json.loads(path.read_text())["final"] for path in (tmp_path / "runs").rglob("results/*.json")]
    assert len(finals) == 15
    assert len({final["loss"] for final in finals}) == 15  # every component has an effect
    assert all(final["probes"]["weights"]["norm"] > 0 for final in finals)
