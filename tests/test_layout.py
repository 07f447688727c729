"""The layout of the package: imports point only down this list, and planning never imports torch."""

from __future__ import annotations

import ast
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
    "tracking", "planning", "exchange", "launchers", "orchestrate", "notebook", "progress", "run_names",
    "sweeps", "launch", "worker", "slurm", "testing", "bench",
    "trained", "execution", "execution_types", "checkpoints", "studies", "probes", "theory", "engine", "methods",
    "metrics", "models", "run_sources",
    "data", "store", "halving", "config", "registry", "references", "plugin_files", "messages", "streams", "sums",
    "choices", "metric_specs", "errors", "parquet_files", "regular", "literal",
]  # fmt: skip


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "flbench" and len(parts) > 1 else None


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert room in ROOMS, f"{room} has no place in the layout"
    imported = {room_of(module) for module in imported_modules(path)}
    above = [other for other in ROOMS if other in imported and ROOMS.index(other) < ROOMS.index(room)]
    assert not above, f"{path.relative_to(PACKAGE)} imports upwards from {above}"


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


@pytest.mark.parametrize(
    "module",
    [
        "flbench.cli", "flbench.api", "flbench.orchestrate", "flbench.sweeps", "flbench.launch", "flbench.worker",
        "flbench.config", "flbench.methods", "flbench.models", "flbench.models.norms", "flbench.probes",
        "flbench.store", "flbench.studies", "flbench.data.catalog", "flbench.data.partition", "flbench.report",
        "flbench.papers",
    ],
)  # fmt: skip
def test_planning_imports_nothing_heavy(module: str) -> None:
    assert heavy_imports(f"import {module}")[0] == []


def test_help_imports_nothing_slow() -> None:
    assert heavy_imports("import flbench.cli", (*HEAVY, *SLOW))[0] == []


def test_commands_import_nothing_heavy_before_they_are_called() -> None:
    modules = ", ".join(sorted({f"flbench.cli.{module}" for module, _, _ in COMMANDS.values()}))
    assert heavy_imports(f"import {modules}")[0] == []


def test_parsing_an_experiment_imports_nothing_heavy() -> None:
    program = (
        "from flbench.config import parse_experiment; "
        "parse_experiment({'norm': 'gn', 'method': 'scaffold', 'dataset': 'cifar10', 'model': 'cnn'}).run_id"
    )
    assert heavy_imports(program)[0] == []


#: Rooms whose code computes the numbers of runs.
COMPUTING = ("execution", "studies", "probes", "theory", "engine", "methods", "metrics", "models", "data",
             "halving", "streams")  # fmt: skip

#: The uses of ``sum`` there, by their source. Each adds whole numbers or tensors, of which every Python has one sum.
EXACT_SUMS = {
    "data/layouts/parquet.py: sum(map(_rows, _shards(folder, prefixes)))",
    "data/partition/domains.py: sum(self.numbers)",
    "engine/cuda_round.py: sum(group.sizes)",
    'engine/dense_stack.py: sum(path in ("head", "logits") for path, _ in layers)',
    "engine/hooks.py: sum(torch.linalg.vector_norm(leaf, dim=0) ** 2 for leaf in flat)",
    "engine/run.py: sum(map(len, self.rows))",
    "engine/run.py: sum(sizes)",
    "engine/server_round.py: sum(group.sizes)",
    "engine/server_round.py: sum(group.sizes[:run])",
    "engine/server_round.py: sum(leaf.numel() * leaf.element_size() for leaf in tree.values())",
    "engine/stack_size.py: sum(kept.values())",
    "engine/stack_size.py: sum(leaf.numel() * leaf.element_size() for leaf in tensors)",
    "halving.py: sum(map(len, race.candidates))",
    "halving.py: sum(size * (after - rung) for size, rung, after in ahead if rung >= now)",
    "halving.py: sum(standing.rung * len(seeds) for standing, seeds in zip(standings, race.candidates, strict=True))",
    "methods/base.py: sum((leaf**2).sum() for leaf in tree.values())",
    "methods/fedacg.py: sum(((w[name] - x) ** 2).sum() for name, x in ctx.x.items())",
    "methods/fedexp.py: sum(((w[name] - x) ** 2).sum() for name, x in ctx.x.items())",
    "methods/fedexp.py: sum((d**2).sum() for d in delta.values())",
    "methods/fedprox.py: sum(((w[name] - x) ** 2).sum() for name, x in ctx.x.items())",
    "metrics.py: sum(size for _, size in pairs)",
    "probes/fisher.py: sum(leaf.numel() for leaf in self._leaves)",
    "studies/gaussian_network.py: sum(terms, start=torch.zeros(()).to(x_TD))",
    "studies/sharpness_study.py: sum(leaf.numel() for leaf in self.x.values())",
}


def test_floats_are_summed_in_order() -> None:
    """Since Python 3.12 ``sum`` compensates for rounding: runs would have other bits than on 3.11.

    The check sees each use of the built-in name in the rooms above, also as an argument. It sees no type, so a person
    tells floats from whole numbers and tensors, once a place. It does not see the sums of ``numpy`` and ``torch``,
    which do not depend on Python, plug-ins, and the rooms that only show numbers.
    """
    found = {
        f"{path.relative_to(PACKAGE)}: {use}"
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in COMPUTING
        for use in uses_of_sum(path.read_text())
    }
    assert found - EXACT_SUMS == set(), "use flbench.sums.sum_in_order; if no float is added, list the place here"
    assert EXACT_SUMS - found == set(), "listed and gone"


def uses_of_sum(source: str) -> set[str]:
    """Return the calls of the built-in ``sum`` in a module, and its name where it is used without a call."""
    tree = ast.parse(source)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "sum")
    texts = (ast.get_source_segment(source, calls.get(id(name), name)) or "" for name in names)
    return {" ".join(text.split()) for text in texts}


def test_the_check_of_sums_sees_calls_and_arguments() -> None:
    seen = uses_of_sum("a = sum(x)\nb = map(sum, y)\nc = z.sum() + fsum(x) + checksum(x)\n")
    assert seen == {"sum(x)", "sum"}
