"""``flbench new``: write a component that works, with its test, to start from."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from flbench.config import registry_of
from flbench.data.datasets import data_root
from flbench.errors import UserError

#: The files that are written, as templates.
SKELETONS = Path(__file__).parent / "skeletons"

Kind = Literal["method", "norm", "model", "dataset"]


def new(
    kind: Annotated[Kind, typer.Argument(help="What to write.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Its name, such as my-norm.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write; default: here.")] = Path(),
) -> None:
    """Write a method, a normalization, a model or a data set that works, and its test; then replace the example.

    Example: flbench new norm my-norm && pytest test_my_norm.py && flbench --plugin my_norm.py run norm=my-norm
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UserError(
            f"flbench new {kind} {name}: expected small letters, digits and single hyphens, as in my-{kind}"
        )
    registry = registry_of(kind)
    if registry is not None and name in registry.classes:
        raise UserError(f"flbench new {kind} {name}: there is a {kind} of this name; choose another")
    file = name.replace("-", "_")
    words = {"kind": kind, "field": kind, "name": name, "file": file, "title": name.title().replace("-", "")}
    tests = {"dataset": ("test_dataset",), "method": ("test", "test_method")}.get(kind, ("test",))
    written = {out / f"{file}.py": (kind,), out / f"test_{file}.py": tests}
    if existing := [path for path in written if path.exists()]:
        raise UserError(f"{existing[0]} exists; choose another name, or --out FOLDER")
    out.mkdir(parents=True, exist_ok=True)
    for path, parts in written.items():
        text = "".join((SKELETONS / f"{part}.txt").read_text(encoding="utf-8") for part in parts)
        path.write_text(Template(text).substitute(words), encoding="utf-8")
    component, test = written
    typer.echo(f"wrote {component} and {test}; next:\n  pytest {test}")
    if kind == "dataset":
        images = data_root() / name
        typer.echo(f"  put images into {images}/train/CLASS/ and {images}/test/CLASS/")
    typer.echo(f"  flbench --plugin {component} run {kind}={name}")
