"""``flbench export`` and ``flbench import``: copy finished runs out of and into a store, or into a contribution."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.numbers import file_size
from flbench.cli.options import LimitOption, OnlyOption, SetsOption, SpecsArgument, StoreOption, parted, public_path
from flbench.errors import UserError
from flbench.exchange import exports, transfer
from flbench.exchange.contributions import CONTRIBUTED, ContributedFile, Contribution, elsewhere, marked
from flbench.exchange.exports import Exported
from flbench.messages import counted
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Heartbeat, Lease, Store
from flbench.sweeps import Sweep, load_sweeps
from flbench.sweeps.spec import NAME


def export(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.parquet", help="The file to write; none with --contribute.", show_default=False),
    ] = None,
    specs: SpecsArgument = None,
    store: StoreOption = DEFAULT_STORE,
    ends: Annotated[
        bool,
        typer.Option("--ends", help="Only the first and the last five evaluations of each run: smaller, no curves."),
    ] = False,
    contribute: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write a contribution into the folder NAME, as ada or lab-berlin."),
    ] = None,
    contributor: Annotated[
        str | None,
        typer.Option("--by", metavar="WHO", help="Who contributes, as reports show it; required the first time."),
    ] = None,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the contributions.")] = Path("results")
    / CONTRIBUTED,
    sets: SetsOption = None,
    only: OnlyOption = None,
    limit: LimitOption = None,
) -> None:
    """Write finished runs into one compact file, which `flbench report --results` and `flbench import` read.

    Experiments, results, metrics and environments are in it; checkpoints, host names and command lines are not.

    With --contribute, write the finished runs of one sweep, and who computed them with what, into
    results/contributed/NAME. Runs that are in results/ or in another contribution already are left out. Commit the
    folder and open a pull request; `flbench verify --results results/contributed/NAME --recompute 3` checks it as CI
    does.

    Example: flbench export results/quickstart.parquet quickstart

    Example: flbench export --contribute ada quickstart --by "Ada Lovelace"
    """
    specs, sets = parted(specs, sets)
    if contribute is not None:
        given = [*([str(file)] if file else []), *specs]
        if not NAME.fullmatch(contribute):
            raise UserError(f"--contribute {contribute}: expected letters, digits, '.', '_' and '-', as in lab-berlin")
        if len(given) != 1 or ends:
            raise UserError("--contribute NAME takes the file of one sweep, and no --ends")
        (sweep,) = load_sweeps(given, sets, only or (), limit)
        _contribute(into / contribute, contributor, sweep, given[0], Store(store, create=False))
        return
    if contributor is not None:
        raise UserError("--by WHO is for contributions: name yours with --contribute NAME")
    if file is None or file.suffix != ".parquet":
        raise UserError(f"{file or 'flbench export'}: expected a name that ends in .parquet")
    opened = Store(store, create=False)
    requested = _requested(opened, load_sweeps(specs, sets, only or (), limit))
    runs, left_out = _finished(opened, requested if specs else opened.run_ids(), ends=ends)
    if not runs:
        what = f"no finished run of {', '.join(specs)}" if specs else "no finished run"
        raise UserError(f"{what} in {store}: run `flbench sweep {specs[0] if specs else 'quickstart'}` first")
    exports.write(file, runs)
    _show(file, runs, len(requested) if specs else None, left_out)


def _contribute(folder: Path, contributor: str | None, sweep: Sweep, spec: str, store: Store) -> None:
    """Write the finished runs of a sweep into a contribution."""
    known = Contribution.of_folder(folder)
    who = contributor or (known.contributor if known else None)
    if who is None:
        raise UserError(f'{folder} is new: say who contributes, by --by "YOUR NAME"')
    if known and known.contributor != who:
        raise UserError(f"{folder} belongs to {known.contributor!r}: choose another name than {folder.name}")
    others = elsewhere(folder)
    requested = _requested(store, [sweep])
    runs, left_out = _finished(store, requested - others.keys())
    if double := len(requested & others.keys()):
        total, results = counted(len(requested), "run"), folder.parent.parent
        typer.echo(f"left out: {double} of {total}, which are in {results} already", err=True)
    if not runs:
        raise UserError(f"nothing to contribute: {store.root} has no other finished run of {spec}")
    runs = marked(runs, who)
    path = folder / f"{sweep.name}.parquet"
    exports.write(path, runs)
    words = [word for option in sweep.options for word in option.split(" ", 1)]
    stated = ContributedFile.of(
        runs, shlex.join(["flbench", "sweep", sweep.bundled_as or public_path(sweep.path), *words])
    )
    Contribution(contributor=who, files={**(known.files if known else {}), path.name: stated}).write(folder)
    _show(path, runs, len(requested), left_out)
    typer.echo(f"next: flbench verify --results {folder} --recompute 3")


def _requested(store: Store, sweeps: Sequence[Sweep]) -> set[str]:
    """Return the ids that the runs of sweeps have in a store."""
    source = StoreSource(store)
    return {run.run_id for sweep in sweeps for run in collect(source, sweep.experiments, search=sweep.search).runs}


def _finished(store: Store, run_ids: Iterable[str], *, ends: bool = False) -> tuple[list[Exported], str]:
    """Return the results of some runs that count, and a text about superseded ones; print which are damaged."""
    exported, problems = transfer.export_runs(store, run_ids, ends=ends)
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    kept, superseded = transfer.current(exported)
    if not superseded:
        return kept, ""
    return kept, f"; left out: {counted(len(superseded), 'superseded result')}, of earlier code of a plug-in"


def _show(path: Path, runs: Sequence[Exported], requested: int | None, left_out: str) -> None:
    """Print what was written; ``requested``: how many runs the user named, None where all."""
    count = len({one.run_id for one in runs})
    shown = counted(count, "run") if requested is None else f"{count} of {counted(requested, 'run')}"
    typer.echo(f"wrote {path}: {shown}, {file_size(path.stat().st_size)}{left_out}")


def import_(
    exported: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files written by `flbench export`.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Add exported runs to a store; runs that it has already are left as they are.

    A result is superseded if the same run has one with the present source code of its plug-ins.
    Exit code 1 if a run has other numbers here than in the file, or is being executed right now.

    Example: flbench import results/quickstart.parquet
    """
    rows = [row for file in exported for row in exports.read(file)]  # all files are checked before the store changes
    lease, target = Lease.here(), Store(store)
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
