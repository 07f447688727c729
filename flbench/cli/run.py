"""``flbench run``: one experiment through the same store and worker as a sweep, with its curve in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from flbench.choices import DEFAULT_STORE, Device, Executor
from flbench.cli.boundary import print_json
from flbench.cli.completion import fields as complete_fields
from flbench.cli.options import MOST_AT_ONCE, DataOption, FieldSetsOption, JsonOption, RerunOption, StoreOption
from flbench.cli.run_curve import RunCurve
from flbench.cli.screen import say
from flbench.launchers import require_computable, run_launcher
from flbench.orchestrate import Orchestrator
from flbench.store import Store
from flbench.sweeps import experiment_from


def run(
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE",
            help="Fields of the experiment, e.g. norm=ln lr=0.1 E=10 method.mu=0.01.",
            autocompletion=complete_fields,
        ),
    ] = None,
    sets: FieldSetsOption = None,
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    device: Annotated[
        Device, typer.Option(help="Device to compute on; auto selects CUDA if available, else the CPU.")
    ] = "auto",
    executor: Annotated[
        Executor, typer.Option(help="Train clients one after the other (loop) or as one computation (stacked).")
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_AT_ONCE, help="Threads of the loop executor; default: all usable cores."),
    ] = None,
    rerun: RerunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one experiment and watch its accuracy; it is stored, so it resumes, extends, and is not repeated.

    A study (kind=sharpness, rank or deep) shows what it measures; `flbench show kinds` lists the fields of each kind.

    Example: flbench run norm=ln partition=classes:1 lr=0.1 E=10

    Example: flbench run --set norm=ln --set lr=0.1

    Example: flbench run kind=sharpness width=200 normalized=bn-last

    Example: flbench run dataset=cifar10 model=cnn method=scaffold rounds=100 --threads 2
    """
    from flbench.planning import prepare_runs, resolve_data  # imports numpy: a Tab would take half as long again

    given = experiment_from([*(fields or ()), *(sets or ())])
    require_computable(given, device, executor)
    (experiment,), notes = resolve_data([given], store, data, "data")
    console = Console(stderr=as_json)
    opened = Store(store)
    for line in (*notes, *prepare_runs(opened, [experiment], rerun=rerun)):
        say(console, line)
    found = opened.run(experiment.run_id)
    if found.state(experiment).status in ("failed", "lost"):
        found.reset_failures()
    shown = RunCurve(console, found, experiment)
    with shown.shown():
        outcome = Orchestrator(
            opened,
            "",
            [experiment],
            lambda: run_launcher(opened, experiment, data, device, executor, threads),
            max_attempts=1,
        ).run(show=shown.update)
    shown.print_end(outcome)
    if as_json:
        print_json(shown.summary(outcome))
    raise typer.Exit(outcome.exit_code)
