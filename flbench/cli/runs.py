"""``flbench runs``: list the runs of a store or of exported files, and filter, sort and cut the list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import ends_quietly, print_json
from flbench.cli.completion import targets
from flbench.cli.options import MOST_RUNS, JsonOption, OnlyOption, ResultsOption, StoreOption, parted
from flbench.cli.screen import label_cells, plain_table, say, wide_console
from flbench.cli.stored_runs import StoredRuns, newest_record, runs_of_files, runs_of_store
from flbench.config import ALIASES, headline_of
from flbench.errors import UserError
from flbench.literal import visible
from flbench.messages import counted, format_scalar, unknown
from flbench.metric_specs import METRICS
from flbench.progress import STATES
from flbench.report.dataframes import row_of
from flbench.report.runs import Run, code_notes_of
from flbench.run_names import common_fields, label
from flbench.store import Entry, Store
from flbench.sweeps import condition

#: A row of the list: a column's name to its value.
Row = dict[str, Any]


def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SWEEP|RUN",
            help="Sweep files, names of sweeps in the store, or the beginnings of run ids; default: every run.",
            autocompletion=targets,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    results: ResultsOption = None,
    only: OnlyOption = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help=f"Only runs in this state: {', '.join(STATES)}; repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Columns to show: fields, metrics and all others of --json, e.g. lr,method.mu,acc."
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(metavar="NAME", help="Sort by a column; with a minus before it, the greatest first.")
    ] = None,
    limit: Annotated[int | None, typer.Option(max=MOST_RUNS, help="List only the first N runs.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs: their id, what they run, state, rounds and headline number.

    `flbench show run ID` shows one of them. With --json, each run has the columns of flbench.load. Runs that cannot be
    read are left out, with a note (with --json on standard error).

    Example: flbench runs lr_robustness --state failed

    Example: flbench runs --only norm=ln --only lr=[0.1,0.3] --columns method,lr,acc,seconds --sort=-acc --limit 10

    Example: flbench runs --results results/quickstart.parquet --only method=fedyogi
    """
    if bad := [one for one in state or () if one not in STATES]:
        raise UserError(f"--state {bad[0]}: {unknown('state', bad[0], STATES)}")
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: expected at least 1 run")
    _, conditions = parted(names, None)
    if conditions:
        condition(conditions)  # a mistake in them comes first, with the nearest name
        raise UserError(f"{conditions[0]}: conditions are options here: --only {conditions[0]}")
    if results:
        opened, found = None, runs_of_files(results)
    else:
        opened = Store(store, create=False)
        found = runs_of_store(opened, names or ())
    matches = condition(only or ())
    chosen = [run for run in found.runs if matches(run.experiment) and (not state or run.state in state)]
    rows = [_row(run, opened) for run in chosen]
    wanted = _columns(columns, rows)
    order = _sorted(rows, sort)[:limit]
    if as_json:
        for note in found.notes:
            typer.echo(visible(f"left out: {note}"), err=True)
        print_json([{name: _plain(rows[at].get(name)) for name in wanted or rows[at]} for at in order])
        return
    with ends_quietly():
        _print(found, chosen, rows, order, wanted)


def _row(run: Run, store: Store | None) -> Row:
    """Return the columns of a run: those of ``flbench.load``, and for a run that goes on its newest evaluation."""
    row = row_of(run)
    if run.result is None and store is not None and (record := newest_record(store, run)) is not None:
        row["reached"] = record["round"]
        row |= {name: value for name, value in record.items() if isinstance(value, int | float) and name != "round"}
    return row


def _columns(given: str | None, rows: Sequence[Row]) -> list[str]:
    """Return the columns that the user named; raises UserError for one that no run has."""
    names = [ALIASES.get(name.strip(), name.strip()) for name in given.split(",")] if given else []
    for name in names:
        _check_column(f"--columns {name}", name, rows)
    return names


def _check_column(option: str, name: str, rows: Sequence[Row]) -> None:
    known = dict.fromkeys(name for row in rows for name in row)
    if rows and name not in known:
        raise UserError(f"{option}: {unknown('column', name, known)}")


def _sorted(rows: Sequence[Row], sort: str | None) -> list[int]:
    """Return the indices of rows in the order of a column; rows without a value come last."""
    if sort is None:
        return list(range(len(rows)))
    name = ALIASES.get(sort.removeprefix("-"), sort.removeprefix("-"))
    _check_column(f"--sort {sort}", name, rows)
    values: list[Any] = [row.get(name) for row in rows]
    present = [at for at, value in enumerate(values) if value is not None]
    if not all(isinstance(values[at], int | float) for at in present):
        values = list(map(str, values))
    ordered = sorted(present, key=values.__getitem__, reverse=sort.startswith("-"))
    return [*ordered, *sorted({*range(len(rows))} - {*present})]


def _print(
    found: StoredRuns, chosen: Sequence[Run], all_rows: Sequence[Row], order: Sequence[int], columns: Sequence[str]
) -> None:
    """Print the runs in ``order``; their labels name what distinguishes them among all that were chosen."""
    console = wide_console()
    runs, rows = [chosen[at] for at in order], [all_rows[at] for at in order]
    if columns:
        table = plain_table(["run"])
        for name in columns:
            are_numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
            table.add_column(name, justify="right" if are_numbers else "left", no_wrap=True)
        for run, row in zip(runs, rows, strict=True):
            table.add_row(run.run_id[:8], *(visible(_text(row.get(name))) for name in columns))
    else:
        table = plain_table(["run", "", "state"], ["round", "result"])
        entries = [Entry.of(run.experiment) for run in runs]
        common = common_fields([Entry.of(run.experiment) for run in chosen])
        labels = label_cells([label(entry.experiment, common) for entry in entries])
        for run, row, entry, drawn in zip(runs, rows, entries, labels, strict=True):
            metric = headline_of(entry.experiment)
            value = row.get(metric)
            shown = "–" if value is None else f"{METRICS[metric].text(value)}{' %' if METRICS[metric].percent else ''}"
            state = (run.failure or run.state) + (" (other code)" if run.changed_plugins else "")
            table.add_row(run.run_id[:8], drawn, state, f"{row.get('reached', 0)}/{run.rounds}", f"{metric} {shown}")
    if runs:
        console.print(table)
    cut = f" (of {len(chosen):,})" if len(chosen) > len(runs) else ""
    say(console, f"{counted(len(runs), 'run')}{cut}; flbench show run ID shows one")
    for note in code_notes_of(runs):
        say(console, note)
    for note in found.notes:
        say(console, f"left out: {note}")


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else format_scalar(value)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
