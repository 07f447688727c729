"""``flbench diff``: compare two runs, cells, sweeps, stores or exported files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.completion import targets
from flbench.cli.options import JsonOption, OnlyOption, StoreOption
from flbench.cli.screen import plain_table, say, wide_console
from flbench.cli.stored_runs import runs_of_files, runs_of_store
from flbench.config import headline_of
from flbench.errors import UserError
from flbench.literal import visible
from flbench.messages import counted, unknown
from flbench.metric_specs import METRICS
from flbench.report.differences import Differences, differences
from flbench.report.runs import Run, collect
from flbench.report.stats import FEWEST
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps import condition, find_file, load_sweep

_SIDE = "A run or sweep of the store, a sweep file, a store, an exported file, or conditions such as 'norm=ln lr=0.1'."


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=_SIDE, show_default=False, autocompletion=targets)],
    second: Annotated[
        str, typer.Argument(metavar="B", help="The same; what is compared with A.", autocompletion=targets)
    ],
    cells: Annotated[
        bool, typer.Option("--cells", help="Compare the cells of these runs: all their seeds that the store has.")
    ] = False,
    only: OnlyOption = None,
    metric: Annotated[str | None, typer.Option(help="Metric to compare; default: the headline number of A.")] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show the fields in which A and B differ, and the paired differences of a metric, B minus A.

    Runs are paired where all other fields and the seed agree. A configuration with three pairs or more has a 95 %
    interval and the p-value of a paired t-test, corrected for the number of configurations (Holm), as in the report.

    Example: flbench diff 3fa2 81c0

    Example: flbench diff norm=none norm=ln --only partition=classes:1

    Example: flbench diff runs/laptop runs/cluster --metric loss
    """
    matches = condition(only or ())
    sides = [[run for run in _side(name, store, cells=cells) if matches(run.experiment)] for name in (first, second)]
    for name, side in zip((first, second), sides, strict=True):
        if not side:
            raise UserError(f"{name}: no run {'meets --only' if only else 'of this name'}; flbench runs lists all")
    if metric is not None and metric not in METRICS:
        raise UserError(f"--metric {metric}: {unknown('metric', metric, METRICS)}")
    metric = metric or headline_of(sides[0][0].experiment.to_json())
    found = differences(sides[0], sides[1], metric)
    if as_json:
        print_json(_json(found, metric))
    else:
        _print(wide_console(), (first, second), found, metric)


def _side(name: str, store: Path, *, cells: bool) -> Sequence[Run]:
    """Return the runs that one argument names."""
    path = Path(name)
    if Store.exists(path):
        return runs_of_store(Store(path, create=False)).runs
    if path.suffix == ".parquet":
        return runs_of_files([path]).runs
    opened = Store(store, create=False)
    if "=" in name:
        matches = condition(shlex.split(name), prefix="")
        return [run for run in runs_of_store(opened).runs if matches(run.experiment)]
    if (file := find_file(name)).suffix in (".yaml", ".yml"):
        sweep = load_sweep(file)
        return collect(StoreSource(opened), sweep.experiments, search=sweep.search).runs
    named = runs_of_store(opened, [name]).runs
    if not cells:
        return named
    ids = {run.cell for run in named}
    return [run for run in runs_of_store(opened).runs if run.cell in ids]


def _print(console: Console, names: tuple[str, str], found: Differences, metric: str) -> None:
    spec = METRICS[metric]
    fields = plain_table(["field", f"A: {visible(names[0])}", f"B: {visible(names[1])}"])
    for field, sides in found.fields.items():
        fields.add_row(field, *(visible(", ".join(side)) for side in sides))
    if found.fields:
        console.print(fields, "", sep="\n")
    else:
        say(console, "No field differs.")
    unit = " (%)" if spec.percent else ""
    varying = list(found.cells[0].key) if found.cells else []
    table = plain_table(varying, ["pairs", f"A: {metric}{unit}", f"B: {metric}{unit}", "B - A", "95 % interval", "p"])
    for cell in found.cells:
        gap, p = cell.contrast.difference, cell.contrast.p
        interval = (gap.mean - gap.half_width, gap.mean + gap.half_width) if gap.half_width is not None else None
        numbers = [spec.text(cell.first), spec.text(cell.second), spec.change(gap.mean)]
        ends = _interval(interval, metric)
        table.add_row(*map(visible, cell.key.values()), str(gap.n), *numbers, ends, "–" if p is None else f"{p:.2g}")
    if found.cells:
        console.print(table)
    if len(found.cells) > 1 and found.mean is not None:
        mean = f"Mean of {len(found.cells)} configurations: {spec.change(found.mean)}{unit}"
        ends = f", over seeds {_interval(found.interval, metric)} (95 %)"
        say(console, mean + (ends if found.interval else ""), fold=True)
    say(console, _counts(found), fold=True)


def _interval(ends: tuple[float, float] | None, metric: str) -> str:
    return "–" if ends is None else " to ".join(map(METRICS[metric].change, ends))


def _counts(found: Differences) -> str:
    parts = [counted(found.pairs, "pair")]
    parts += [f"{found.same} of the same run with equal numbers"] if found.same else []
    alone = zip(found.unpaired, "AB", strict=True)
    parts += [f"{counted(count, 'run')} of {side} without a partner or a number" for count, side in alone if count]
    if any(cell.contrast.difference.half_width is None for cell in found.cells):
        parts += [f"no interval for fewer than {FEWEST} pairs"]
    return "; ".join(parts)


def _json(found: Differences, metric: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "metric": metric,
        "fields": {field: {"a": list(a), "b": list(b)} for field, (a, b) in found.fields.items()},
        "cells": [
            {
                "fields": dict(cell.key),
                "pairs": cell.contrast.difference.n,
                "a": cell.first,
                "b": cell.second,
                "difference": cell.contrast.difference.mean,
                "half_width": cell.contrast.difference.half_width,
                "p": cell.contrast.p,
            }
            for cell in found.cells
        ],
        "mean": found.mean,
        "interval": found.interval and list(found.interval),
        "pairs": found.pairs,
        "same": found.same,
        "unpaired": {"a": found.unpaired[0], "b": found.unpaired[1]},
    }
