"""``flbench jobs``: the commands of a sweep's workers, for any queue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.completion import sweep_files
from flbench.cli.options import (
    MOST_AT_ONCE,
    ChangesArgument,
    DataOption,
    LimitOption,
    OnlyOption,
    SetsOption,
    StoreOption,
)
from flbench.store import CancelMark, Store
from flbench.sweeps import load_sweep


def jobs(
    spec: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC", help="The sweep file, or its NAME, as of `flbench sweep`.", autocompletion=sweep_files
        ),
    ],
    changes: ChangesArgument = None,
    workers: Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="Number of workers, at most one a run.")] = 4,
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
) -> None:
    r"""Write a sweep's plan into the store, and print the command of each worker, one a line, for any queue.

    A worker takes runs from the store until none is left. It stops at SIGTERM or SIGINT, with a checkpoint, and exit
    code 75: execute its command again, or let another worker go on. `flbench sweep` with the same arguments executes
    what is left, and shows the leaderboard. `flbench docs queues` has examples for PBS, LSF, Kubernetes and others.

    Example: flbench jobs quickstart --workers 8 > jobs.txt

    Example: flbench jobs quickstart --workers 2 | xargs -d '\n' -n 1 -P 2 sh -c
    """
    from flbench.cli.dry_run import finished_runs
    from flbench.data.datasets import data_root
    from flbench.launch.commands import worker_commands
    from flbench.launchers import SweepWorkers
    from flbench.planning import prepare_runs, resolve_data, write_plan
    from flbench.report.preview import check_report_of

    given = load_sweep(spec, [*(changes or ()), *(sets or ())], only or (), limit)
    check_report_of(given)
    options = SweepWorkers.of(given, data_root(data).absolute(), backend="local").options
    experiments, notes = resolve_data(given.experiments, store, data, "content")
    sweep, opened = given.planned_as(experiments), Store(store)
    directory = write_plan(opened, sweep)
    for note in (*notes, *prepare_runs(opened, sweep.experiments)):
        typer.echo(note, err=True)
    CancelMark(directory).clear()  # else the workers of a sweep that was cancelled would end at once
    found = finished_runs(sweep, store)
    left = len(found.runs) - len(found.seconds)
    if not left:
        typer.echo("nothing is left to run", err=True)
    for command in worker_commands(opened.root, "/".join(directory.parts[-2:]), options, min(workers, left)):
        typer.echo(command)
