"""``flbench sync``: mirror what is in the store to W&B, TensorBoard or another tracker, now or next to a sweep."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE, TrackingMode
from flbench.cli.boundary import ends_quietly, print_json
from flbench.cli.completion import sweeps as complete_sweeps
from flbench.cli.options import JsonOption, StoreOption
from flbench.cli.sweep_view import sweep_view
from flbench.cli.targets import expect_plans
from flbench.cli.waiting import Waiting
from flbench.errors import UserError
from flbench.store import Store, plan_name
from flbench.store.secrets import redact
from flbench.tracking.jobs import job_of_plan, job_of_runs, unplanned_runs
from flbench.tracking.sink import read_tracker
from flbench.tracking.sync import sync_job


def sync(
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SWEEP",
            help="Sweep files, or names of sweeps in the store; default: all of them.",
            autocompletion=complete_sweeps,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    mode: Annotated[
        TrackingMode | None,
        typer.Option(help="For W&B: offline writes files for `wandb sync`; default: what the sweep file says."),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER",
            help="wandb, wandb:PROJECT, tensorboard or tensorboard:DIR; repeatable; default: what the sweep file says.",
        ),
    ] = None,
    as_json: JsonOption = False,
    beside: Annotated[
        bool,
        typer.Option("--beside", hidden=True, help="Continue until standard input closes; used by `flbench sweep`."),
    ] = False,
) -> None:
    """Mirror finished runs, and each sweep's table and figures, to W&B, TensorBoard or another tracker.

    Safe to repeat: only runs that the tracker does not have as they are now are sent. `flbench sweep` does the same on
    its own while it runs. Exit codes: 0 all finished runs are mirrored, 1 some are not, 2 bad usage, 4 store unusable.

    Example: flbench sync

    Example: flbench sync sweeps/quickstart.yaml --mode offline

    Example: flbench sync quickstart --to tensorboard:logs
    """
    given = [read_tracker(text) for text in to or ()]
    opened = Store(store, create=False)
    plans = [path for name in sweeps for path in expect_plans(opened, name)] if sweeps else opened.sweep_dirs()
    jobs = {plan_name(plan): partial(job_of_plan, plan, sweep_view) for plan in plans}
    if not sweeps and (unplanned := unplanned_runs(opened)):
        jobs["runs of no sweep"] = partial(job_of_runs, opened, unplanned)
    if not jobs:
        raise UserError(f"nothing to mirror in {store}: run `flbench sweep sweeps/quickstart.yaml` first")

    def say(line: str) -> None:
        print(redact(line), file=sys.stderr if as_json else sys.stdout, flush=True)

    with ends_quietly(), Waiting(say, quiet=beside) as output:
        results = [
            result
            for name, make in jobs.items()
            for result in sync_job(opened, name, make, given, mode, output, beside=beside)
        ]
    ok = all(result.ok for result in results)
    if as_json:
        print_json({"schema": 1, "store": str(store), "ok": ok, "sweeps": [result.json() for result in results]})
    raise typer.Exit(int(not ok))
