"""Components of other packages, which flbench finds through the metadata of installed distributions."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import flbench as flbench_package
from flbench.errors import InvalidComponent
from flbench.registry import REGISTRIES, TRACKERS, Component, Registry
from tests.warm import warm_python

HERE = Path(__file__).parent

SWEEP = """
version: 1
name: plugged
base: {dataset: digits, model: {name: mlp, widths: [8]}, clients: 4, partition: "dirichlet:1", rounds: 3, eval_every: 3}
axes: {method: [fedavg, signsgd], norm: [none, maxnorm]}
report: {rows: [method, norm], cols: [partition]}
"""


def install(name: str, target: Path) -> None:
    """Write what an installer writes: the module, and the metadata with its entry points."""
    project = tomllib.loads((HERE / name / "pyproject.toml").read_text())["project"]
    info = target / f"{name}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    shutil.copy(HERE / name / f"{name}.py", target)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    groups = project["entry-points"].items()
    text = "\n".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups)
    (info / "entry_points.txt").write_text(text)


def flbench(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(site, "from flbench.cli import main; main()", *arguments)


def python(site: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [warm_python(), "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site.parent, check=False)


@pytest.mark.slow
def test_a_method_and_a_norm_of_another_package_reach_the_leaderboard(tmp_path: Path) -> None:
    site, spec = tmp_path / "site", tmp_path / "plugged.yaml"
    install("flbench_demo", site)
    spec.write_text(SWEEP)
    done = flbench(site, "sweep", str(spec), "--backend", "local", "--workers", "2", "--store", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr + done.stdout
    report = flbench(site, "report", str(spec), "--store", str(tmp_path / "runs"), "--out", str(tmp_path / "board.md"))
    assert report.returncode == 0, report.stderr
    board = (tmp_path / "board.md").read_text()
    for row in ("| fedavg | none |", "| fedavg | maxnorm |", "| signsgd | none |", "| signsgd | maxnorm |"):
        assert row in board
    assert "Runs: 4, 4 finished" in board
    results = (tmp_path / "runs").rglob("results/*.json")
    accuracies = {json.loads(path.read_text())["final"]["acc"] for path in results}
    assert len(accuracies) > 2  # the components have an effect


#: Of each method, its folder, its line in Python, and what `check_method` says of it.
CHECK = "from flbench.registry import METHODS; from flbench.testing import check_method; import {}; check_method({})"
METHODS_FOLDER = Path(flbench_package.__file__).parent / "methods"


def without_gradient(source: str) -> str:
    """Return the source of a method without its ``penalty_gradient``, and without the line that says what this sees."""
    lines = source.splitlines(keepends=True)
    statements = [one for top in ast.parse(source).body if isinstance(top, ast.ClassDef) for one in top.body]
    for one in reversed(statements):
        first, last = one.lineno - 1, one.end_lineno or 0
        if isinstance(one, ast.FunctionDef) and one.name == "penalty_gradient":
            del lines[first : last + 1]  # and the empty line after it
        elif isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "elementwise":
            del lines[first:last]
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "method", "problem"),
    [
        ("flbench_demo", "flbench_demo.SignSgd", None),
        ("flbench_mistaken", "flbench_mistaken.Forgetful", "the hook server_step of the method 'forgetful' returned"),
        ("flbench_mistaken", "flbench_mistaken.Misspelt", "the hook penalty of the method 'misspelt' raised KeyError"),
        ("my_feddyn", "METHODS.parse('my-feddyn')", None),
        ("my_fedsam", "METHODS.parse('my-fedsam')", None),
        ("my_moon", "METHODS.parse('my-moon')", None),
    ],
)
def test_authors_can_check_a_method(package: str, method: str, problem: str | None, tmp_path: Path) -> None:
    """Those of other packages, and files of flbench under another name, which have at most 60 lines.

    A gradient by hand, which no author needs to give, is left out.
    """
    if package.startswith("my_"):
        source = without_gradient((METHODS_FOLDER / f"{package.removeprefix('my_')}.py").read_text())
        assert len(source.splitlines()) <= 60
        (tmp_path / f"{package}.py").write_text(source.replace('register("', 'register("my-'))
    else:
        install(package, tmp_path)
    done = python(tmp_path, CHECK.format(package, method))
    assert (done.returncode == 0) == (problem is None), done.stderr
    assert (problem or "") in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "executor", "line", "problem"),
    [
        ("forgetful", "loop", 15, "hook server_step of the method 'forgetful' returned dict; expected a pair: (the se"),
        ("misspelt", "loop", 25, "the hook penalty of the method 'misspelt' raised KeyError: 'haed.weight'"),
        ("misspelt", "stacked", 25, "the hook penalty of the method 'misspelt' raised KeyError: 'haed.weight'"),
    ],
)
def test_a_mistake_in_a_hook_is_one_message(
    method: str, line: int, problem: str, executor: str, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install("flbench_mistaken", site)
    small = ["clients=4", "partition=iid", "rounds=2", "model={name: mlp, widths: [8]}"]
    store = ["--store", str(tmp_path / "runs"), "--executor", executor]
    done = flbench(site, "run", f"method={method}", *small, *store)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert f"flbench_mistaken.py:{line}: " in said and problem in said and "Traceback" not in said
    (log,) = (tmp_path / "runs").rglob("log.txt")
    assert "Traceback" in log.read_text() if method == "misspelt" else problem in log.read_text()


@pytest.mark.slow
def test_a_model_of_another_package_has_equal_weights_in_every_process(tmp_path: Path) -> None:
    install("flbench_demo", tmp_path / "site")
    fields = ("model=attention", "clients=4", "partition=iid", "E=2", "rounds=2", "eval_every=2", "--device", "cpu")
    losses = set()
    for store in ("one", "two"):
        done = flbench(tmp_path / "site", "run", *fields, "--json", "--store", str(tmp_path / store))
        assert done.returncode == 0, done.stderr
        losses.add(json.loads(done.stdout)["final"]["loss"])
    assert len(losses) == 1
    ignored = flbench(tmp_path / "site", "run", "model=attention", "norm=ln", "--store", str(tmp_path / "runs"))
    assert ignored.returncode == 2
    assert "ln in attention: the network has the same layers without it" in ignored.stderr
    assert "Traceback" not in ignored.stderr and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_edited_plugin_executes_its_finished_runs_again_and_no_others(tmp_path: Path) -> None:
    site, spec, store = tmp_path / "site", tmp_path / "plugged.yaml", tmp_path / "runs"
    install("flbench_demo", site)
    spec.write_text(SWEEP)

    def said(*words: str) -> str:
        done = flbench(site, *words, "--store", str(store))
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def losses() -> dict[Path, float]:
        return {path: json.loads(path.read_text())["final"]["loss"] for path in store.rglob("results/*.json")}

    sweep = ("sweep", str(spec), "--backend", "inline")
    said(*sweep)
    first = losses()
    module = site / "flbench_demo.py"
    module.write_text(module.read_text().replace("self.scale * leaf.sign()", "2 * self.scale * leaf.sign()"))
    edited = (
        "The source code of the plug-in flbench_demo has changed: flbench run or sweep executes 3 finished runs again."
    )
    assert "to run: 3\n" + edited in said("sweep", str(spec), "--dry-run")
    (state,) = json.loads(said("status", "plugged", "--json"))["sweeps"]
    assert (state["done"], state["pending"], state["rounds_done"], state["rounds_total"]) == (1, 3, 3, 12)
    listed = said("runs", "plugged")
    assert listed.count("done (other code)") == 3 and edited in listed
    reported = said("report", str(spec), "--out", str(tmp_path / "edited.md"))
    assert reported.count("1/1 with other code of a plug-in") == 3 and edited in reported
    assert f"> **Other code:** {edited}" in (tmp_path / "edited.md").read_text()
    assert edited in said(*sweep)
    second = losses()
    assert {path: second[path] for path in first} == first, "earlier results are kept"
    assert len(second) - len(first) == 3, "the run of built-in components alone is reused"
    assert "nothing to launch" in said(*sweep) and losses() == second
    said("report", str(spec), "--out", str(tmp_path / "board.md"))
    text = (tmp_path / "board.md").read_text()
    assert "Plug-ins: flbench_demo=" in text and "ther code" not in text


def test_a_package_that_cannot_be_imported_does_not_affect_others(tmp_path: Path) -> None:
    site, spec = tmp_path / "site", tmp_path / "broken.yaml"
    install("flbench_demo", site)
    install("flbench_broken", site)
    shown = flbench(site, "show", "methods", "--json")
    assert shown.returncode == 0
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert "fedavg" in rows and "broken" not in rows
    row = rows["signsgd"]
    assert (row["module"], row["equation"], row["source"]) == ("flbench_demo", "w <- w - lr scale sign(g)", None)
    assert {"name": "scale", "type": "number > 0", "default": 0.1, "required": False} in row["fields"]
    why = (
        "the package 'flbench-broken' offers the method 'broken' (flbench_broken:Broken), which cannot be loaded: "
        "No module named 'a_package_that_is_not_there'"
    )
    assert shown.stderr.splitlines() == [f"{why}; update or uninstall it"]
    spec.write_text("version: 1\nname: broken\naxes: {method: [fedavg, broken]}\n")
    done = flbench(site, "sweep", str(spec), "--store", str(tmp_path / "runs"))
    assert done.returncode == 2, "who uses it is told why"
    assert "broken.yaml:3: axes.method[1]: the package 'flbench-broken' offers the method 'broken'" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_components_of_a_single_file(tmp_path: Path) -> None:
    spec, plugin, store = tmp_path / "plugged.yaml", tmp_path / "my-demo.py", tmp_path / "runs"
    spec.write_text(SWEEP)
    shutil.copy(HERE / "flbench_demo" / "flbench_demo.py", plugin)
    sweep = ("--plugin", "my-demo.py", "sweep", str(spec), "--store", str(store), "--backend", "local")
    done = flbench(tmp_path / "site", *sweep, "--workers", "1")
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(path.read_text()) for path in store.rglob("results/*.json")]
    plugins = {result["environment"].get("plugins") for result in results} - {None, ""}
    assert len(results) == 4
    assert [name.partition("=")[0] for name in plugins] == ["flbench_plugin_my_demo"]
    plugin.write_text(plugin.read_text() + "# changed\n")
    again = flbench(tmp_path / "site", *sweep, "--dry-run", "--json")
    assert (json.loads(again.stdout)["done"], json.loads(again.stdout)["missing"]) == (1, 3), "only fedavg without norm"
    plugin.write_text("x = 1\n\ny = x / 0\n")
    broken = flbench(tmp_path / "site", *sweep)
    assert broken.returncode == 2
    assert broken.stderr == f"error: {plugin}:3: ZeroDivisionError: division by zero\n"
    missing = flbench(tmp_path / "site", "--plugin", "none.py", "show", "norms")
    assert (missing.returncode, missing.stderr) == (
        2,
        "error: --plugin none.py: expected a Python file, there is none\n",
    )


def test_the_sweep_with_a_plug_in_of_this_repository(tmp_path: Path) -> None:
    sweeps = HERE.parents[1] / "sweeps"
    plugged = ("--plugin", str(sweeps / "head_lr.py"), "sweep", str(sweeps / "head_scale.yaml"))
    done = flbench(tmp_path / "site", *plugged, "--dry-run", "--json", "--store", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["missing"] == 420


def test_a_copy_of_a_sweep_that_needs_a_plug_in_of_this_repository(tmp_path: Path) -> None:
    """Its comment names the plug-in by a path that need not exist there; without it the message names the file."""
    file = HERE.parents[1] / "sweeps/head_lr.py"
    site = tmp_path / "site"
    (tmp_path / "mine.yaml").write_text(flbench(site, "show", "sweep", "head_scale").stdout)
    sweep = ("sweep", "mine.yaml", "--dry-run", "--json")
    bare = flbench(site, *sweep)
    assert bare.returncode == 2
    assert f"unknown method 'head-lr', which {file} has: flbench --plugin {file} COMMAND" in bare.stderr
    done = flbench(site, "--plugin", "sweeps/head_lr.py", *sweep)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["missing"] == 420
    near = flbench(site, "--plugin", "head_lr", *sweep)
    assert near.returncode == 2
    assert near.stderr.endswith("there is none; did you mean sweeps/head_lr.py, which comes with flbench?\n")


def test_files_that_the_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable and the option may name the same file, each in its own way."""
    (tmp_path / "dyt.py").write_text("x = 1\n")
    monkeypatch.setenv("FLBENCH_PLUGINS", "dyt.py")
    for options in ((), ("--plugin", "./dyt.py"), ("--plugin", str(tmp_path / "dyt.py"))):
        done = flbench(tmp_path / "site", *options, "show", "norms")
        assert done.returncode == 0, done.stderr
    monkeypatch.setenv("FLBENCH_PLUGINS", "/none.py")
    done = flbench(tmp_path / "site", "show", "norms")
    assert (done.returncode, done.stderr) == (2, "error: $FLBENCH_PLUGINS: /none.py: no such file\n")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise SystemExit", "SystemExit"),
        ("raise GeneratorExit", "GeneratorExit"),
        (
            "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd",
            "Odd: its text cannot be made (ValueError)",
        ),
    ],
)
def test_a_file_that_ends_the_process_or_hides_its_error(tmp_path: Path, code: str, says: str) -> None:
    (tmp_path / "odd.py").write_text(f"{code}\n")
    done = flbench(tmp_path / "site", "--plugin", "odd.py", "show", "norms")
    assert done.returncode == 2, done
    assert says in done.stderr and "odd.py" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("registry", [*REGISTRIES, TRACKERS], ids=lambda registry: registry.kind)
def test_a_component_must_derive_from_the_base_of_its_kind(registry: Registry[Any]) -> None:
    @dataclass(frozen=True)
    class Bare:
        """It derives from nothing."""

    module, _, name = registry.base.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), name), Component)
    with pytest.raises(InvalidComponent, match=f"^{registry.kind} 'bare' must derive from {registry.base}$"):
        registry.register("bare")(Bare)
    assert "bare" not in registry.classes


HEAD = """from dataclasses import dataclass
from flbench.data.partition.base import Partition
from flbench.models.base import Model
from flbench.models.norms.base import Norm
from flbench.registry import MODELS, NORMS, PARTITIONS
"""


@pytest.mark.parametrize(
    ("registry", "base", "body", "problem"),
    [
        ("NORMS", "", "pass", "6: norm 'mine' must derive from flbench.models.norms.base.Norm"),
        (
            *("NORMS", "(Norm)", "def layer(self, site): return 1 / 0"),
            "9: the hook layer of the norm 'mine' raised ZeroDivisionError: division by zero",
        ),
        (
            *("NORMS", "(Norm)", "def layer(self): return None"),
            "9: the hook layer of the norm 'mine' raised TypeError: Mine.layer() takes 1 positional argument but 2 "
            "were given",
        ),
        (
            *("MODELS", "(Model)", "def stages(self): return ()[1]"),
            "9: the hook stages of the model 'mine' raised IndexError: tuple index out of range",
        ),
        (
            *("PARTITIONS", "(Partition)", "def problem(self, *_): raise RuntimeError"),
            "9: the hook problem of the partition 'mine' raised RuntimeError",
        ),
    ],
)
def test_a_mistake_in_a_component_of_a_file_is_one_message(
    registry: str, base: str, body: str, problem: str, tmp_path: Path
) -> None:
    plugin, field = tmp_path / "mine.py", registry.removesuffix("S").lower()
    lines = (f'@{registry}.register("mine")', "@dataclass(frozen=True)", f"class Mine{base}:", f"    {body}")
    plugin.write_text(HEAD + "\n".join(lines) + "\n")
    store = tmp_path / "runs"
    done = flbench(tmp_path / "site", "--plugin", str(plugin), "run", f"{field}=mine", "--store", str(store))
    assert (done.returncode, done.stderr) == (2, f"error: {plugin}:{problem}\n")
    assert not store.exists()


def test_an_error_in_a_layer_of_a_file_fails_the_run_and_names_the_line(tmp_path: Path) -> None:
    plugin, store = tmp_path / "mine.py", tmp_path / "runs"
    plugin.write_text(
        f"{HEAD}from torch import nn\n\n"
        "class Layer(nn.Module):\n"
        "    def forward(self, x_B):\n"
        "        return x_B * [][0]\n\n"
        '@NORMS.register("mine")\n'
        "@dataclass(frozen=True)\n"
        "class Mine(Norm):\n"
        "    def layer(self, site): return Layer()\n"
    )
    small = ["norm=mine", "partition=iid", "rounds=1", "model={name: mlp, widths: [8]}", "--store", str(store)]
    done = flbench(tmp_path / "site", "--plugin", str(plugin), "run", *small)
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert f"error: {plugin}:10: IndexError: list index out of range (log: {store}" in said
    (log,) = store.rglob("log.txt")
    assert "Traceback" in log.read_text()


ENDS = """import sys
from pathlib import Path
from dataclasses import dataclass
from flbench.methods.base import Method
from flbench.models.norms.base import Norm
from flbench.registry import METHODS, NORMS

@METHODS.register("ends")
@dataclass(frozen=True)
class Ends(Method):
    def penalty(self, w, batch, ctx):
        sys.exit(0)

@NORMS.register("ends")
@dataclass(frozen=True)
class EndsNorm(Norm):
    def layer(self, *given, **named):
        sys.exit(0)

@NORMS.register("ends-late")
@dataclass(frozen=True)
class EndsLate(Norm):
    def layer(self, site):
        from torch import nn
        return sys.exit(0) if [*Path("store").rglob("attempts/*/lease.json")] else nn.Identity()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("component", "says", "code", "ends"),
    [
        ("method=ends", "the hook penalty of the method 'ends' raised SystemExit: 0", 1, ["error"]),
        ("norm=ends-late", "it ends the process (SystemExit: 0)", 1, ["error"]),
        ("norm=ends", "the hook layer of the norm 'ends' raised SystemExit: 0", 2, []),  # before the run
    ],
)
def test_a_component_that_ends_the_process_fails_its_run(
    tmp_path: Path, component: str, says: str, code: int, ends: list[str]
) -> None:
    """``sys.exit(0)`` in a hook is no success."""
    (tmp_path / "ends.py").write_text(ENDS)
    small = ["clients=2", "partition=iid", "rounds=1", "model={name: mlp, widths: [8]}", "--store", "store"]
    done = flbench(tmp_path / "site", "--plugin", str(tmp_path / "ends.py"), "run", component, *small)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, said
    assert "ends.py:" in said and says in said and "Traceback" not in said
    assert [json.loads(path.read_text())["kind"] for path in (tmp_path / "store").rglob("exit.json")] == ends
