"""``flbench sweep``: launch what is missing, adopt what runs, end with the leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from flbench.choices import DEFAULT_STORE, OwnBackend
from flbench.cli.boundary import print_json
from flbench.cli.completion import backends, sweep_files
from flbench.cli.dry_run import print_dry_run
from flbench.cli.options import (
    MOST_AT_ONCE,
    WORKERS,
    ChangesArgument,
    DataOption,
    JsonOption,
    LimitOption,
    OnlyOption,
    RerunOption,
    SetsOption,
    StoreOption,
)
from flbench.config import require_device
from flbench.errors import DataMissing, OtherData, UserError
from flbench.launchers import SweepWorkers
from flbench.sweeps import load_sweep


def sweep(
    spec: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC",
            help="The sweep file (YAML), or NAME: sweeps/NAME.yaml, or one of `flbench show sweeps`.",
            autocompletion=sweep_files,
        ),
    ],
    changes: ChangesArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, from the file and the store; do nothing.")
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WORKERS,
            envvar="FLBENCH_BACKEND",
            show_envvar=True,
            metavar="|".join(get_args(OwnBackend)),
            help="Where workers run, or the name of a plug-in's backend; default: that of the file, else local.",
            autocompletion=backends,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WORKERS,
            metavar="NAME|FILE",
            help="What jobs request of SLURM; NAME: slurm/profiles/NAME.yaml.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=WORKERS,
            min=1,
            max=MOST_AT_ONCE,
            help="Number of workers; default: as many as cores and GPUs have room for; on SLURM, max_jobs. "
            "On SLURM fewer are submitted for little work, since each takes some ten seconds to start.",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", rich_help_panel=WORKERS, help="Start the workers and return (exit code 3).")
    ] = False,
    on_end: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Shell command to execute when the sweep has ended, also after a failure or Ctrl-C: a mail, a "
            "webhook. It reads the summary of --json on standard input, and $SWEEP_NAME and $SWEEP_EXIT_CODE.",
        ),
    ] = None,
    rerun: RerunOption = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER", help="Show runs in TensorBoard, too: tensorboard:DIR; the same as --set track=..."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a sweep file: launch what is missing, adopt what is running, end with the leaderboard.

    It is always safe to repeat the command: finished runs are never repeated, interrupted ones resume. Ctrl-C or
    SIGTERM lets the workers finish their round, a second one kills them; neither counts as a failed attempt. If SIGINT
    is ignored, as in a script's background job, it stays so: use SIGTERM or `flbench cancel`.

    Exit codes: 0 all done, 1 some runs failed, 2 invalid file or usage, 3 incomplete or detached, 4 store unusable,
    130 interrupted.

    Example: flbench sweep quickstart

    Example: flbench sweep lr_robustness --set axes.lr=[0.1,0.3] --only method=fedavg --dry-run

    Example: flbench sweep quickstart rounds=50 seeds=[0,1] --dry-run

    Example: flbench sweep quickstart --track tensorboard:logs

    Example: flbench sweep digits --on-end 'mail -s "$SWEEP_NAME: exit code $SWEEP_EXIT_CODE" me@example.org'

    Example: flbench sweep digits --set val_fraction=0.1 --set search.axis=lr --dry-run
    """
    from flbench.cli.sweep_run import (
        SweepRun,
        execute_on_end,
    )  # imports numpy, as does planning: a Tab would take half as long again
    from flbench.planning import resolve_data
    from flbench.report.preview import check_report_of
    from flbench.tracking.sink import read_tracker

    for one in track or ():
        read_tracker(one, "--track")  # names the option; the message about the sweep would name --set
    tracked = [f"track=[{', '.join(track)}]"] if track else []
    given = load_sweep(spec, [*(changes or ()), *(sets or ()), *tracked], only or (), limit)
    check_report_of(given)
    for tracker in given.spec.track:
        tracker.require()
    wanted = SweepWorkers.of(given, data, backend=backend, profile=profile, count=workers)
    wanted.require_store(store)
    require_device(given.experiments, lambda: wanted.options.device)
    needed: Literal["data", "content", "nothing"] = "content" if wanted.backend == "slurm" else "data"
    problem: UserError | None = None
    try:
        experiments, notes = resolve_data(given.experiments, store, data, needed)
    except (DataMissing, OtherData) as error:  # a dry run needs no data
        if not dry_run:
            raise
        problem = error
        experiments, notes = resolve_data(given.experiments, store, data, "nothing")
    for note in notes:
        typer.echo(note, err=True)
    loaded = given.planned_as(experiments)
    if dry_run:
        print_dry_run(loaded, store, workers=wanted.count, rerun=rerun, as_json=as_json)
        if problem is not None:  # on standard error, beside JSON, too
            typer.echo(f"without --dry-run, this sweep cannot start: {problem}", err=True)
        script = wanted.script(store, f"{loaded.name}/{loaded.spec_hash}", loaded.experiments)
        if script is not None and not as_json:
            typer.echo(script)
        return
    if detach and wanted.backend == "inline":
        raise UserError("--detach needs workers of their own: use --backend local")
    if detach and on_end:
        raise UserError("--on-end needs a command that waits for the sweep: leave out --detach")
    try:
        summary = SweepRun(loaded, wanted, store, as_json=as_json).execute(detach=detach, rerun=rerun)
    except UserError as error:
        if on_end:
            execute_on_end(on_end, {"sweep": loaded.name, "exit_code": error.exit_code, "message": str(error)})
        raise
    if on_end:
        execute_on_end(on_end, summary)
    if as_json:
        print_json(summary)
    raise typer.Exit(summary["exit_code"])
