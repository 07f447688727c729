"""The layout of the package: imports point only down this list, and planning never imports torch."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import flbench
from flbench.cli.commands import COMMANDS
from tests.start_up import HEAVY, SLOW, heavy_imports

PACKAGE = Path(flbench.__file__).parent

#: From the top to the bottom; a room may import from itself and from those below.
ROOMS = [
    "__main__", "cli", "api", "papers", "report",
    "tracking", "planning", "pretrained", "exchange", "launchers", "orchestrate", "notebook", "progress", "run_names",
    "sweeps", "launch", "worker", "slurm", "testing", "bench", "embedding",
    "training_problem", "trained", "execution", "execution_types", "studies", "probes", "fisher", "theory", "engine",
    "methods", "metrics", "models", "native", "checkpoints", "run_sources",
    "data", "store", "halving", "refinement", "config", "registry", "references", "metric_specs", "discovery",
    "plugin_files", "messages", "tensor_streams", "streams", "codes", "sums", "choices", "installation", "errors",
    "parquet_files",
    "regular", "literal",
]  # fmt: skip


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "flbench" and len(parts) > 1 else None


@cache
def imported_modules(path: Path) -> set[str]:
    """Return the package's modules that a module imports; ``from a import b`` names ``a.b`` if that is a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {full if is_module(full) else node.module for full in members.values()}
    return {name for name in names if name.startswith("flbench.")}


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


#: Every module but the package's own, which has no room.
MODULES = sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "__init__.py"})


def test_imports_point_down() -> None:
    upwards = []
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert room in ROOMS, f"{room} has no place in the layout"
        others = {room_of(module) for module in imported_modules(path)} & set(ROOMS[: ROOMS.index(room)])
        upwards += [f"{path.relative_to(PACKAGE)} imports from {other}" for other in sorted(filter(None, others))]
    assert upwards == []


def test_no_circles() -> None:
    """No module imports another that leads back to it, imports for type checkers and inside functions among them."""
    names = {".".join(("flbench", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in MODULES}
    paths = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = {name: imported_modules(path) & paths.keys() - {name} for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_no_module_is_longer_than_400_lines() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > 400} == {}


#: Rooms that plan, watch and report: a command that only does these starts at once.
PLANNING = (
    "flbench.cli", "flbench.api", "flbench.orchestrate", "flbench.sweeps", "flbench.launch", "flbench.worker",
    "flbench.config", "flbench.methods", "flbench.models", "flbench.models.norms", "flbench.probes",
    "flbench.store", "flbench.studies", "flbench.data.catalog", "flbench.data.partition", "flbench.report",
    "flbench.papers",
)  # fmt: skip


def test_nothing_heavy_is_imported_for_planning_and_before_a_command_is_called() -> None:
    commands = sorted({f"flbench.cli.{module}" for module, _, _ in COMMANDS.values()})
    program = (
        f"import {', '.join((*PLANNING, *commands))}; from flbench.config import parse_experiment; "
        "parse_experiment({'norm': 'gn', 'method': 'scaffold', 'dataset': 'cifar10', 'model': 'cnn'}).run_id"
    )
    assert heavy_imports(program)[0] == []


def test_help_imports_nothing_slow() -> None:
    assert heavy_imports("import flbench.cli", (*HEAVY, *SLOW))[0] == []


#: Rooms whose code computes the numbers of runs.
COMPUTING = ("execution", "studies", "probes", "fisher", "theory", "engine", "methods", "metrics", "models", "data",
             "halving", "refinement", "tensor_streams", "streams", "codes")  # fmt: skip

#: What a line with ``sum`` says if it adds no floats.
EXACT = re.compile(r"# exact: (tensors|whole numbers)$")


def test_floats_are_summed_in_order() -> None:
    """Since Python 3.12 ``sum`` compensates for rounding: runs would have other bits than on 3.11.

    The check sees each use of the built-in name in the rooms above, also as an argument. It sees no type, so a person
    tells floats from whole numbers and tensors, of which every Python has one sum, and says ``exact: tensors`` in a
    comment on the line or above it. It does not see the sums of ``numpy`` and ``torch``, which do not depend on Python,
    plug-ins, and the rooms that only show numbers.
    """
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in COMPUTING
        for line in unexplained_sums(path.read_text())
    }
    assert not found, "use flbench.sums.sum_in_order; if no float is added, say so: '# exact: whole numbers'"


def unexplained_sums(source: str) -> list[int]:
    """Return the lines that use the built-in ``sum`` without saying that no float is added."""
    lines, nodes = ["", *source.splitlines()], ast.walk(ast.parse(source))
    uses = sorted({node.lineno for node in nodes if isinstance(node, ast.Name) and node.id == "sum"})
    return [at for at in uses if not EXACT.search(lines[at]) and not EXACT.fullmatch(lines[at - 1].strip())]


def test_the_check_of_sums_sees_calls_and_arguments() -> None:
    source = "a = sum(x)\nb = map(sum, y)\nc = z.sum() + fsum(x) + checksum(x)\n# exact: tensors\nd = sum(x)\n"
    assert unexplained_sums(source + "e = sum(x)  # exact: whole numbers\n") == [1, 2]
