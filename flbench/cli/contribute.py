"""``flbench contribute``: export runs for a pull request."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.exchange import superseded_text
from flbench.cli.numbers import file_size
from flbench.cli.options import LimitOption, OnlyOption, SetsOption, StoreOption, public_path
from flbench.errors import UserError
from flbench.messages import counted
from flbench.report import exports, transfer
from flbench.report.contributions import CONTRIBUTED, ContributedFile, Contribution, elsewhere, marked
from flbench.run_sources import StoreSource, named_by
from flbench.store import Store
from flbench.sweeps import load_sweep
from flbench.sweeps.spec import NAME


def contribute(
    name: Annotated[str, typer.Argument(help="Name of your folder, as ada or lab-berlin.", show_default=False)],
    spec: Annotated[Path, typer.Argument(help="The sweep file, or NAME for sweeps/NAME.yaml.", show_default=False)],
    contributor: Annotated[
        str | None,
        typer.Option("--by", metavar="WHO", help="Who contributes, as reports show it; required the first time."),
    ] = None,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the contributions.")] = Path("results")
    / CONTRIBUTED,
    store: StoreOption = DEFAULT_STORE,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
) -> None:
    """Write the finished runs of a sweep, and who computed them with what, into results/contributed/NAME.

    Runs that are in results/ or in another contribution already are left out. Commit the folder and open a pull
    request; `flbench verify --results results/contributed/NAME --recompute 3` checks it as CI does. Not exported: host
    names, command lines, checkpoints.

    Example: flbench contribute ada sweeps/quickstart.yaml --by "Ada Lovelace"
    """
    if not NAME.fullmatch(name):
        raise UserError(f"flbench contribute {name}: expected letters, digits, '.', '_' and '-', as in lab-berlin")
    folder = into / name
    known = Contribution.of_folder(folder)
    who = contributor or (known.contributor if known else None)
    if who is None:
        raise UserError(f'{folder} is new: say who contributes, by --by "YOUR NAME"')
    if known and known.contributor != who:
        raise UserError(f"{folder} belongs to {known.contributor!r}: choose another name than {name}")
    sweep = load_sweep(spec, sets or (), only or (), limit)
    opened, others = Store(store, create=False), elsewhere(folder)
    source = StoreSource(opened)
    wanted = {experiment.run_id for experiment in named_by(source, sweep.experiments)}
    exported, problems = transfer.export_runs(opened, wanted - others.keys())
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    if double := len(wanted & others.keys()):
        typer.echo(f"left out: {double} of {counted(len(wanted), 'run')}, which are in {into.parent} already", err=True)
    if not exported:
        raise UserError(f"nothing to contribute: {store} has no other finished run of {spec}")
    exported, superseded = transfer.current(exported)
    runs = marked(exported, who)
    path = folder / f"{sweep.name}.parquet"
    exports.write(path, runs)
    words = [word for option in sweep.options for word in option.split(" ", 1)]
    stated = ContributedFile.of(runs, shlex.join(["flbench", "sweep", public_path(sweep.path), *words]))
    Contribution(contributor=who, files={**(known.files if known else {}), path.name: stated}).write(folder)
    count = len({one.run_id for one in runs})
    size, more = file_size(path.stat().st_size), superseded_text(superseded)
    typer.echo(f"wrote {path}: {count} of {counted(len(wanted), 'run')}, {size}{more}")
    typer.echo(f"next: flbench verify --results {folder} --recompute 3")
