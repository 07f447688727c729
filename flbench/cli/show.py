"""``flbench show``: lists of components, metrics, figures, kinds and sweep files; one of them, a run, a partition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.completion import shown_names
from flbench.cli.component_tables import (
    component_details,
    component_table,
    components,
    figure_table,
    figures,
    kind_table,
    kinds,
    listed_sweep,
    metric_table,
    metrics,
    sweep_paths,
    sweep_row,
    sweep_table,
)
from flbench.cli.options import DataOption, FieldSetsOption, JsonOption, StoreOption
from flbench.cli.schema import sweep_schema
from flbench.cli.screen import wide_console
from flbench.cli.show_run import print_run, run_facts
from flbench.cli.targets import find_run
from flbench.errors import UserError
from flbench.messages import unknown
from flbench.registry import REGISTRIES, Registry
from flbench.store import Store
from flbench.sweeps import find_file
from flbench.sweeps.source import Source

#: The registries by what lists them. Each name without its ``s`` means one of the list.
COMPONENTS: Mapping[str, Registry[Any]] = {f"{registry.kind}s": registry for registry in REGISTRIES}

#: What the command lists, and the things of which it shows one.
LISTS = (*COMPONENTS, "metrics", "figures", "kinds", "sweeps")
SINGLE = ("partition", "run", "schema")


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help=f"What to list: {', '.join(LISTS)}; or one thing: {', '.join(SINGLE)}.",
            show_default=False,
            autocompletion=lambda: [*LISTS, *SINGLE],
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|FIELD=VALUE",
            help="Show this one in detail; for a run, the beginning of its id; for a partition, FIELD=VALUE... as in "
            "`flbench run`.",
            autocompletion=shown_names,
        ),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="List the sweep files below it; default: those in sweeps/ and those of flbench."),
    ] = None,
    data: DataOption = None,
    sets: FieldSetsOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Also draw the partition as a figure: a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """List methods, norms, heads, models, data sets, partitions, cohorts, probes, metrics, figures, kinds, sweep files.

    With a NAME, show one of them: its documentation, equation, source, and fields with defaults and limits.

    `show run` shows what a run changed of the defaults, its curve, attempts, probes, environment and files.

    `show partition FIELD=VALUE...` shows how many samples of each class every client has, by the fields dataset,
    partition, clients, seed, min_size, val_fraction and server_fraction: every method, model and norm trains on it.

    `show sweep NAME` prints a sweep file, to start from.

    `show schema` prints the JSON Schema of sweep files, by which editors complete and check them.

    Example: flbench show norms

    Example: flbench show method fedprox

    Example: flbench show kind federated

    Example: flbench show run 3fa2

    Example: flbench show partition dataset=digits partition=dirichlet:0.1 clients=10 seed=0 --out clients.png

    Example: flbench show sweep quickstart > mine.yaml

    Example: flbench show schema > sweep.schema.json
    """
    given = [*(names or []), *(sets or [])]
    if what == "partition" and (not given or any("=" in name for name in given)):
        from flbench.cli.partition import show_partition  # imports numpy: a Tab would take half as long again

        show_partition(given, data, out, as_json=as_json)
        return
    if out is not None or data is not None or sets:
        raise UserError(
            f"flbench show {what}: --set, --out and --data are options of flbench show partition FIELD=VALUE..."
        )
    if len(given) > 1:
        raise UserError(f"flbench show {what}: expected one name, got {' '.join(given)}")
    name = given[0] if given else None
    if what == "schema":
        print_json(sweep_schema())
        return
    if what in ("run", "runs"):
        if name is None:
            raise UserError(f"flbench show {what}: give the beginning of a run's id; flbench runs lists all")
        opened = Store(store, create=False)
        facts = run_facts(opened, find_run(opened, name))
        (print_json if as_json else print_run)(facts)
        return
    if what in ("sweep", "sweeps") and name is not None:
        path = find_file(name)
        text = Source.open(path).text
        if as_json:
            print_json({**sweep_row(name, path), "text": text})
        else:
            typer.echo(text, nl=False)
        return
    listed = what if what in LISTS else f"{what}s"
    if listed not in LISTS:
        raise UserError(f"flbench show {what}: {unknown('list', what, (*LISTS, *SINGLE))}")
    shown: list[RenderableType]
    if listed == "kinds":
        rows = _chosen(kinds(), "kind", name)
        shown = [kind_table(row) for row in rows]
    elif listed == "figures":
        rows = _chosen(figures(), "kind of figure", name)
        shown = [figure_table(rows)]
    elif listed == "metrics":
        rows = _chosen(metrics(), "metric", name)
        shown = [metric_table(rows), "A sweep file ranks by one of them: report: {metric: NAME}"]
    elif listed == "sweeps":
        rows = [listed_sweep(file, path) for file, path in sweep_paths(folder).items()]
        shown = [sweep_table(rows), "flbench show sweep NAME prints one; flbench sweep NAME --dry-run counts its runs."]
    else:
        found = COMPONENTS[listed]
        rows = components(found.classes.values() if name is None else [_class_of(found, name)])
        shown = [component_table(listed, rows), f"flbench show {found.kind} NAME shows one in detail."]
        if name is not None:
            field = listed if listed == "probes" else found.kind
            shown = list(component_details(field, rows[0], found[rows[0]["name"]]))
    if as_json:
        print_json(rows if name is None else rows[0])
    elif not rows:
        typer.echo(f"no sweep files (*.yaml) below {folder}" if listed == "sweeps" else f"no {listed} are installed")
    else:
        wide_console().print(*shown, sep="\n", highlight=False)


def _class_of(found: Registry[Any], name: str) -> Any:
    """Return the component that a name, or its form with a value (``classes:2``), means; raises UserError."""
    try:
        return found[name.partition(":")[0]]
    except KeyError as error:
        raise UserError(str(error)) from None


def _chosen(rows: list[dict[str, Any]], what: str, name: str | None) -> list[dict[str, Any]]:
    """Return all rows, or the one with a name; raises UserError if there is none."""
    if name is None:
        return rows
    known: Mapping[str, Any] = {row["name"]: row for row in rows if row["name"]}
    if name not in known:
        raise UserError(unknown(what, name, known))
    return [known[name]]
