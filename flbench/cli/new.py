"""``flbench new``: write a sweep file, or a component that works with its test, to start from."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Literal, NamedTuple, get_args

import typer

from flbench.config import KINDS, registry_of
from flbench.errors import UserError
from flbench.installation import install
from flbench.messages import counted
from flbench.metric_specs import METRICS
from flbench.registry import LAUNCHERS
from flbench.report.figures.drawing import FIGURES
from flbench.sweeps import FOLDER, load_sweep
from flbench.sweeps.spec import NAME

#: The files that are written, as templates.
SKELETONS = Path(__file__).parent / "skeletons"

Kind = Literal[
    "sweep", "method", "norm", "head", "model", "dataset", "partition", "sampler", "probe", "metric", "figure", "study",
    "launcher",
]  # fmt: skip


class _Use(NamedTuple):
    """How what is written is used.

    Attributes:
        tests: the parts of its test. ``setting``: what a run that uses it is given, in that test.
        command: a command that uses it.
        note: what becomes of finished runs.
    """

    tests: tuple[str, ...] = ("test",)
    setting: str = '"$kind": "$name"'
    command: str = "run $kind=$name"
    note: str = ""


_USES: Mapping[str, _Use] = {
    "method": _Use(("test", "test_method")),
    "dataset": _Use(("test_dataset",)),
    "sampler": _Use(
        ("test", "test_sampler"), '"participation": 0.5, "cohort": "$name"', "run participation=0.2 cohort=$name"
    ),
    "probe": _Use(
        ("test", "test_probe"),
        '"probes": ["$name"]',
        "run 'probes=[$name]'",
        "finished runs without it are executed again where a command requests it",
    ),
    "metric": _Use(
        ("test", "test_metric"), '"norm": "none"', "run", "every run records it; finished runs do after --rerun"
    ),
    "figure": _Use(("test_command", "test_figure"), command="plot $name", note="it is drawn from finished runs"),
    "study": _Use(("test_study",), command="run kind=$name"),
    "launcher": _Use(
        ("test_command", "test_launcher"), command="sweep FILE --set 'backend={kind: $name, hosts: [HOST]}'"
    ),
}


def new(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", help=f"What to write: {', '.join(get_args(Kind))}.", show_default=False)
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as my-norm.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; default: here, a sweep into sweeps/.")
    ] = None,
) -> None:
    """Write a commented sweep file; or a component, metric, figure, study or launcher that works, and its test.

    Then replace the example. It never overwrites a file.

    Example: flbench new sweep my_norms && flbench sweep my_norms --dry-run

    Example: flbench new norm my-norm && pytest test_my_norm.py && flbench --plugin my_norm.py run norm=my-norm
    """
    if kind == "sweep":
        _new_sweep(name, out or FOLDER)
    else:
        _new_component(kind, name, out or Path())


def _new_sweep(name: str, folder: Path) -> None:
    if not NAME.fullmatch(name):
        raise UserError(f"flbench new sweep {name}: expected letters, digits, '.', '_' and '-', as in my_norms")
    path = folder / f"{name}.yaml"
    _write({path: ("sweep",)}, {"name": name})
    count = load_sweep(path).arithmetic
    sizes = f"{counted(count.cells, 'cell')}, {counted(count.runs, 'run')}"
    typer.echo(f"wrote {path}: {sizes}; next: flbench sweep {name if folder == FOLDER else path} --dry-run")


def _new_component(kind: str, name: str, folder: Path) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UserError(
            f"flbench new {kind} {name}: expected small letters, digits and single hyphens, as in my-{kind}"
        )
    file = name.replace("-", "_")
    if (file if kind == "metric" else name) in _known(kind):
        raise UserError(f"flbench new {kind} {name}: there is a {kind} of this name; choose another")
    use, words = _USES.get(kind, _Use()), {"kind": kind, "name": name}
    words |= {"file": file, "title": name.title().replace("-", ""), "setting": Template(use.setting).substitute(words)}
    component, test = folder / f"{file}.py", folder / f"test_{file}.py"
    _write({component: (kind,), test: use.tests}, words)
    typer.echo(f"wrote {component} and {test}; next:\n  {_pytest()} {test}")
    if kind == "dataset":
        from flbench.data.datasets import data_root  # imports numpy, which help does not need

        images = data_root() / name
        typer.echo(f"  put images into {images}/train/CLASS/ and {images}/test/CLASS/")
    typer.echo(f"  flbench --plugin {component} {Template(use.command).substitute(words)}")
    if use.note:
        typer.echo(use.note)


def _pytest() -> str:
    """Return the command that runs tests, after that which installs pytest where it is missing, as beside a wheel."""
    return "pytest" if find_spec("pytest") is not None else f"{install('pytest')}\n  pytest"


def _known(kind: str) -> Container[str]:
    """The names of a kind that are taken."""
    others: Mapping[str, Container[str]] = {"metric": METRICS, "study": KINDS, "figure": FIGURES}
    if kind in others:
        return others[kind]
    registry = (
        LAUNCHERS if kind == "launcher" else registry_of({"probe": "probes", "sampler": "cohort"}.get(kind, kind))
    )
    return registry.classes if registry is not None else ()


def _write(files: Mapping[Path, tuple[str, ...]], words: Mapping[str, str]) -> None:
    """Write files from their skeletons; raises UserError, and writes nothing, if one exists."""
    if existing := [path for path in files if path.exists()]:
        raise UserError(f"{existing[0]} exists; choose another name, or --out FOLDER")
    for path, parts in files.items():
        text = "".join((SKELETONS / f"{part}.txt").read_text(encoding="utf-8") for part in parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(Template(text).substitute(words))
