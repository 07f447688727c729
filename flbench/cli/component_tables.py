"""Components, kinds of experiments and sweep files as ``flbench show`` lists them: as JSON and as tables."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flbench.cli.schema import first_line
from flbench.cli.screen import fitting, plain_table
from flbench.config import KINDS, parse_experiment, registry_of
from flbench.errors import UserError
from flbench.literal import visible
from flbench.messages import format_scalar
from flbench.metric_specs import METRICS
from flbench.references import spelled_out
from flbench.registry import Component, default_of, plain, schema_of, stated
from flbench.sweeps import FOLDER, bundled_files, load_sweep, shadowed
from flbench.sweeps.source import read_text


def components(classes: Iterable[type[Component]]) -> list[dict[str, Any]]:
    """Return components as JSON.

    Returns:
        For each: ``name``, ``shorthand``, ``version``, ``fields``, ``doc`` (the first line), ``equation`` and
        ``source`` (the paper; both null if it states none) and ``module``.
    """
    return [
        {
            "name": cls.name,
            "shorthand": f"{cls.name}:{cls.shorthand.upper()}" if cls.shorthand else None,
            "version": cls.version,
            "fields": _fields(cls),
            "doc": first_line(cls).replace("``", ""),
            "equation": stated(cls, "equation") or None,
            "source": spelled_out(stated(cls, "source")) or None,
            "module": cls.__module__,
        }
        for cls in classes
    ]


def kinds() -> list[dict[str, Any]]:
    """Return every kind of experiment, as JSON.

    Returns:
        For each: ``name``, ``version``, ``fields`` (each with a ``doc``), ``doc`` (the first line) and ``headline``:
        the metric that summarizes a run whose fields have their defaults.
    """
    rows = []
    for kind, model in KINDS.items():
        default = parse_experiment({"kind": kind}).to_json()
        schema = model.model_json_schema()["properties"]
        fields = [
            {
                "name": field,
                "type": f"show {own.kind}s" if (own := registry_of(field)) else _type(schema[field]),
                "default": default[field],
                "required": False,
                "doc": info.description,
            }
            for field, info in model.model_fields.items()
            if field != "kind"
        ]
        facts = {"name": kind, "version": model.version, "fields": fields}
        rows.append({**facts, "doc": first_line(model), "headline": model.headline_of(default)})
    return rows


def figures() -> list[dict[str, Any]]:
    """Return every kind of figure, as JSON: its ``name``, what it ``shows``, and what runs it ``requires``."""
    from flbench.papers import papers  # with the report, which imports pandas: a Tab would take three times as long
    from flbench.report.paper import figure_kinds

    return [
        {"name": name, "shows": kind.shows, "requires": kind.requires.replace("`", "")}
        for name, kind in figure_kinds(papers()).items()
    ]


def metrics() -> list[dict[str, Any]]:
    """Return every metric, as JSON.

    Returns:
        For each: ``name``, ``title``, ``what`` (its definition), ``recorded`` (when runs record it), ``percent``
        (whether it is a fraction, shown in percent) and ``lower_is_better``.
    """
    shown = ("title", "what", "recorded", "percent", "lower_is_better")
    return [{"name": name, **{key: getattr(metric, key) for key in shown}} for name, metric in METRICS.items()]


def sweep_paths(folder: Path | None) -> dict[str, Path]:
    """Return every sweep file below a folder, under the name that a command takes.

    Without a folder these are the files below ``sweeps``, and those that come with flbench.
    """
    files = {str(path): path for path in sorted((folder or FOLDER).rglob("*.yaml"))}
    if folder is None:
        files |= {name: path for name, path in bundled_files().items() if not shadowed(name)}
    return files


def listed_sweep(file: str, path: Path) -> dict[str, Any]:
    """Return what the comments of a sweep file say, which takes a millisecond; expanding it may take seconds.

    Returns:
        ``file`` (the name that a command takes), ``about`` (the first sentence), ``plugins`` (the files that it names
        with ``--plugin``) and ``problem`` (why it cannot be read, or null).
    """
    row: dict[str, Any] = {"file": file, "about": "", "plugins": [], "problem": None}
    try:
        text = read_text(path)
    except UserError as error:
        return {**row, "problem": str(error)}
    comments = (line for line in text.splitlines() if line.startswith("#"))
    named = dict.fromkeys(name for line in comments for name in re.findall(r"--plugin[ =](\S+)", line))
    # A comment names the file as in the repository; in a wheel it is beside the sweep as well.
    beside = {name: path.with_name(Path(name).name) for name in named}
    plugins = [str(found) if found.is_file() else name for name, found in beside.items()]
    return {**row, "about": _first_sentence(text), "plugins": plugins}


def sweep_row(file: str, path: Path) -> dict[str, Any]:
    """Return what ``listed_sweep`` does, and the ``name`` of the sweep and its numbers of ``cells`` and ``runs``."""
    row = {**listed_sweep(file, path), "name": None, "cells": None, "runs": None}
    try:
        sweep = load_sweep(path)
    except UserError as error:
        return {**row, "problem": str(error)}
    return {**row, "name": sweep.name, "cells": sweep.arithmetic.cells, "runs": sweep.arithmetic.runs}


def _first_sentence(text: str) -> str:
    r"""Return the first sentence of the comment that a sweep file begins with; '' if it has none.

    >>> _first_sentence("# Does it help? On\n# digits.\nversion: 1\n")
    'Does it help?'
    """
    lines = itertools.takewhile(lambda line: re.match("# *[^# ]", line), text.splitlines())
    comment = " ".join(line.lstrip("# ").rstrip() for line in lines)
    return re.split(r"(?<=[.?!])(?<!et al\.) ", comment, maxsplit=1)[0]


def _fields(cls: type[Component]) -> list[dict[str, Any]]:
    schema = schema_of(cls)
    return [
        {
            "name": field.name,
            "type": _type(schema["properties"][field.name]),
            "default": None if (default := default_of(field)) is dataclasses.MISSING else plain(default),
            "required": default is dataclasses.MISSING,
        }
        for field in dataclasses.fields(cls)
    ]


#: The limits of a number in a JSON Schema: as an inequality, and as an end of an interval.
_LEAST = {"minimum": (">=", "["), "exclusiveMinimum": (">", "(")}
_MOST = {"maximum": ("<=", "]"), "exclusiveMaximum": ("<", ")")}


#: The names of JSON's types in YAML, where they differ.
_IN_YAML = {"object": "mapping"}


def _type(schema: dict[str, Any]) -> str:
    """Return a JSON Schema in words: ``number > 0``, ``number in (0, 1]``, ``always 1``, ``original | text | code``."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = schema.get("const", schema.get("type", "any"))
    kind = " | ".join(_IN_YAML.get(str(one), str(one)) for one in (kind if isinstance(kind, list) else [kind]))
    least, most = (
        [(*signs, f"{schema[key]:g}") for key, signs in limits.items() if key in schema and schema[key] < 2**63]
        for limits in (_LEAST, _MOST)
    )
    if not (least and most):
        return " ".join([kind, *(f"{sign} {value}" for sign, _, value in (*least, *most))])
    (above, left, low), (below, right, high) = least[0], most[0]
    return (
        f"always {low}" if low == high and above == ">=" and below == "<=" else f"{kind} in {left}{low}, {high}{right}"
    )


def kind_table(row: dict[str, Any]) -> Table:
    """Return the fields of a kind of experiment, with their defaults and meaning."""
    table = plain_table(title=f"[bold]kind: {row['name']}[/bold]  {escape(row['doc'])}")
    table.show_header = False
    for field in row["fields"]:
        table.add_row(
            f"  {field['name']}", escape(_default_text(field["default"])), escape(f"{field['doc']} ({field['type']})")
        )
    return table


def _default_text(default: Any) -> str:
    """Return a default as people write it; for a component, its name."""
    if isinstance(default, dict):
        rest = [str(value) for name, value in default.items() if name != "name"]
        return ":".join([default["name"], *rest])
    return "-" if default is None else "[]" if default == [] else format_scalar(default)


def component_table(what: str, rows: list[dict[str, Any]]) -> Table:
    """Return one line for each component: its YAML form, what it is, and its fields with their defaults.

    Norms are below the first sentence of their module, which is their family.
    """
    table = plain_table(["name"], title=what)
    for module, members in itertools.groupby(rows, key=lambda row: str(row["module"])):
        if what == "norms" and not module.endswith(".base"):
            table.add_row("", Text(_family(module), style="italic"))
        for row in members:
            fields = ", ".join(f"{field['name']}={_default_of_field(field)}" for field in row["fields"])
            line = Text(row["doc"]).append(f"  ({fields})" if fields else "", style="dim")
            table.add_row(f"[bold]{escape(row['shorthand'] or row['name'])}[/bold]", line)
    return table


def _family(module: str) -> str:
    """Return the first line of a module's docstring; its name if it has none, as in a plug-in."""
    return (inspect.getdoc(sys.modules[module]) or module).splitlines()[0].replace("``", "")


def component_details(field: str, row: Mapping[str, Any], cls: type[Component]) -> Iterator[str | Table]:
    """Yield all there is to know about one component: how to write it, its fields, documentation, equation, source."""
    yield f"[bold]{escape(row['name'])}[/bold]  ({field}, version {row['version']}, {escape(row['module'])})"
    yield ""
    for paragraph in (inspect.getdoc(cls) or "").replace("``", "").split("\n\n"):
        yield escape(paragraph if "\n " in paragraph else " ".join(paragraph.split("\n")))  # the terminal breaks lines
        yield ""
    table = plain_table(["field", "default", "type"])
    for one in row["fields"]:
        table.add_row(escape(one["name"]), escape(_default_of_field(one)), escape(one["type"]))
    if row["fields"]:
        yield table
        yield ""
    yield from (f"{what}: {escape(row[what])}" for what in ("equation", "source") if row[what])
    yield f"On the command line: {escape(_example(field, row))}"


def _example(field: str, row: Mapping[str, Any]) -> str:
    name = row["shorthand"] or row["name"]
    last = next((one for one in reversed(row["fields"]) if one["default"] is not None), None)
    if field == "probes":
        return f"probes={{{row['name']}: 10}}"
    if registry_of(field) is None:  # it has no settings of its own on the command line
        return f"{field}={name}"
    return f"{field}={name}" + (f" {field}.{last['name']}={_default_of_field(last)}" if last else "")


def _default_of_field(field: Mapping[str, Any]) -> str:
    return "required" if field["required"] else "–" if field["default"] is None else format_scalar(field["default"])


def figure_table(rows: list[dict[str, Any]]) -> Table:
    """Return one line for each kind of figure."""
    table = plain_table(["figure", "shows", "requires"])
    for row in rows:
        table.add_row(row["name"], escape(row["shows"]), escape(row["requires"]))
    return table


def metric_table(rows: list[dict[str, Any]]) -> Table:
    """Return one line for each metric."""
    table = plain_table(["metric", "what it is", "recorded", "better"], title="metrics")
    for row in rows:
        better = "lower" if row["lower_is_better"] else "higher"
        table.add_row(f"[bold]{row['name']}[/bold]", escape(row["what"].replace("`", "")), row["recorded"], better)
    return table


def sweep_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return one line for each sweep file: what it is about and which plug-ins it needs, or its mistake."""
    table = plain_table(["sweeps", ""])
    for row in rows:
        problem = Text(visible(row["problem"] or ""), style="red")
        table.add_row(Text(visible(row["file"])), problem if problem else fitting(row["about"]))
        for name in row["plugins"]:
            table.add_row("", Text(f"needs --plugin {visible(shlex.quote(name))}", style="italic"))
    return table
