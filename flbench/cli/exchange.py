"""``flbench export`` and ``flbench import``: copy finished runs out of and into a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.numbers import file_size
from flbench.cli.options import LimitOption, OnlyOption, SetsOption, SpecsArgument, StoreOption
from flbench.errors import UserError
from flbench.messages import counted
from flbench.report import exports, transfer
from flbench.run_sources import StoreSource, named_by
from flbench.store import Heartbeat, Lease, Store
from flbench.sweeps import load_sweeps


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="The file to write.")],
    specs: SpecsArgument = None,
    store: StoreOption = DEFAULT_STORE,
    ends: Annotated[
        bool,
        typer.Option("--ends", help="Only the first and the last five evaluations of each run: smaller, no curves."),
    ] = False,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
) -> None:
    """Write finished runs into one compact file, which `flbench report --results` and `flbench import` read.

    Experiments, results, metrics and environments are in it; checkpoints, host names and command lines are not.

    Example: flbench export results/quickstart.parquet sweeps/quickstart.yaml
    """
    if file.suffix != ".parquet":
        raise UserError(f"{file}: expected a name that ends in .parquet")
    opened = Store(store, create=False)
    sweeps = load_sweeps(specs or [], sets or (), only or (), limit)
    source = StoreSource(opened)
    requests = [experiment.run_id for sweep in sweeps for experiment in named_by(source, sweep.experiments)]
    exported, problems = transfer.export_runs(opened, requests if specs else opened.run_ids(), ends=ends)
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    if not exported:
        what = f"no finished run of {', '.join(map(str, specs))}" if specs else "no finished run"
        raise UserError(
            f"{what} in {store}: run `flbench sweep {specs[0] if specs else 'sweeps/quickstart.yaml'}` first"
        )
    exported, superseded = transfer.current(exported)
    exports.write(file, exported)
    runs = len({one.run_id for one in exported})
    total = len(set(requests)) if specs else runs
    of = f"{runs} of " if specs else ""
    size, more = file_size(file.stat().st_size), superseded_text(superseded)
    typer.echo(f"wrote {file}: {of}{counted(total, 'run')}, {size}{more}")


def superseded_text(superseded: Sequence[exports.Exported]) -> str:
    """Return ``; left out: 6 superseded results, ...``; empty where there are none."""
    if not superseded:
        return ""
    return f"; left out: {counted(len(superseded), 'superseded result')}, of earlier code of a plug-in"


def import_(
    exported: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files written by `flbench export`.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Add exported runs to a store; runs that it has already are left as they are.

    A result is superseded if the same run has one with the present source code of its plug-ins.
    Exit code 1 if a run has other numbers here than in the file, or is being executed right now.

    Example: flbench import results/quickstart.parquet
    """
    rows = [row for file in exported for row in exports.read(file)]  # all files are checked before the store changes
    lease = Lease.here()
    target = Store(store)
    with Heartbeat(target.workers, lease):
        outcome = transfer.import_runs(target, rows, lease)
    counts = Counter(verdict for _, verdict in outcome)
    for one, verdict in outcome:
        if verdict in ("different numbers", "in use"):
            typer.echo(
                f"not imported: run {one.run_id} of {counted(one.result.rounds, 'round')}: {verdict} in {store}",
                err=True,
            )
    typer.echo(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "nothing in these files")
    if counts["different numbers"] or counts["in use"]:
        raise typer.Exit(1)
