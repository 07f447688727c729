"""``flbench verify``: check the files of a store, or exported files, and compute runs again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.completion import targets
from flbench.cli.options import MOST_RUNS, DataOption, JsonOption, ResultsOption, StoreOption
from flbench.cli.targets import find_targets
from flbench.errors import UserError
from flbench.exchange.contributions import Review
from flbench.exchange.findings import Findings
from flbench.exchange.recompute import Recomputed, recompute_exported
from flbench.exchange.recompute import recompute as recompute_stored
from flbench.exchange.store_audit import Audit
from flbench.literal import visible
from flbench.messages import counted
from flbench.plugin_files import CURE
from flbench.store import Store

#: Problems printed at most; further ones are counted.
MOST_PROBLEMS = 50

#: Exit codes: something is wrong; nothing is, but some runs cannot be checked before their plug-in is named.
_WRONG, _UNCHECKED = 1, 2


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STORE|SWEEP|RUN",
            help="A store's directory, sweeps, or beginnings of run ids; default: all.",
            autocompletion=targets,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    recompute: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_RUNS,
            metavar="N",
            help="Also execute N finished runs again, and compare every number.",
        ),
    ] = 0,
    results: ResultsOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every file of a store, or exported files (--results), without changing any.

    JSON is whole and of a known version, ids are the hashes of their experiments, checkpoints match their checksums,
    metrics ascend without gaps and match their results, plans are whole, and what a worker recorded about an attempt
    (lease.json, environment.json, exit.json) matches its checksum, if flbench wrote one (0.1.0 did not). Checksums
    reveal damage and careless edits, not forgery. Not checked: logs, heartbeats, marks (cancel.json, forgiven,
    superseded), the numbers of runs without a result, and whether a whole result or attempt was removed.

    With --recompute, runs that this machine can reproduce (same device, executor and torch) are executed again in a
    temporary folder and compared bit by bit, except for times.

    Exit code: 0 if all is sound, 1 if something is wrong, 2 if nothing is wrong but some runs name a component that is
    not known here, as one of a plug-in that is not loaded. Then it is not known whether their ids are those of their
    experiments.

    With --results, exported files and contributions (folders of results/contributed) are checked: their layout and
    checksums, the versions of their components, the contributor's name, and that no other file has the same runs.
    --recompute prefers cheap runs then, and compares accuracies within 2 points: processors round differently.

    Example: flbench verify

    Example: flbench verify quickstart --recompute 3

    Example: flbench verify --results results/contributed --recompute 3
    """
    found: Findings
    again: Iterator[Recomputed]
    if results is not None:
        if names:
            raise UserError(f"--results checks exported files, {names[0]} would be in a store: name one of both")
        found = review = Review.of(results)
        checked: dict[str, Any] = {"results": [str(path) for path in results], "runs": len(review.runs)}
        shown = f"{counted(len(review.runs), 'run')} in {', '.join(map(str, results))}: {review.summary}"
        again = recompute_exported(review.runs, recompute, data)
    else:
        given = names or []
        if stores := [name for name in given if Store.exists(Path(name))]:  # in place of the option
            if len(given) > 1:
                raise UserError(f"{stores[0]} is a store: name it alone, or as --store {stores[0]} with sweeps or runs")
            store, given = Path(stores[0]), []
        found = audit = Audit(store=Store(store, create=False))
        run_ids = _check(audit, given)
        checked = {"store": str(store), "runs": audit.runs, "files": audit.files}
        aside = sum(1 for _ in audit.store.quarantine.glob("*"))
        noted = f"; found damaged before: {counted(aside, 'file')} in {audit.store.quarantine}" if aside else ""
        shown = f"{counted(audit.runs, 'run')}, {counted(audit.files, 'file')}: {audit.summary}{noted}"
        again = recompute_stored(audit.store, [one for one in run_ids if audit.is_sound(one)], recompute, data)
    if not as_json:
        _print(found)
        typer.echo(visible(shown))
    verdicts = _shown(again, quiet=as_json) if recompute else []
    if as_json:
        problems = [{"path": str(one.path), "what": one.what} for one in found.problems]
        unknown = {component: sorted(run_ids) for component, run_ids in sorted(found.unknown.items())}
        recomputed = [dataclasses.asdict(verdict) for verdict in verdicts]
        print_json({"schema": 1, **checked, "problems": problems, "unknown": unknown, "recomputed": recomputed})
    if found.problems or any(verdict.verdict == "different" for verdict in verdicts):
        raise typer.Exit(_WRONG)
    if found.unknown:
        raise typer.Exit(_UNCHECKED)


def _check(audit: Audit, names: Sequence[str]) -> list[str]:
    """Check what the user named in a store; return the ids of the runs in it."""
    if not names:
        audit.everything()
        return list(audit.store.run_ids())
    targets = find_targets(audit.store, names)
    planned = [entry.run_id for directory in targets.plans for entry in audit.plan(directory)]
    run_ids = sorted({*planned, *targets.run_ids})
    for run_id in run_ids:
        if (path := audit.store.run(run_id).path).exists():
            audit.run(path)
    return run_ids


def _print(found: Findings) -> None:
    for problem in found.problems[:MOST_PROBLEMS]:
        typer.echo(visible(f"{problem.path}: {problem.what}"))
    if len(found.problems) > MOST_PROBLEMS:
        typer.echo(f"and {len(found.problems) - MOST_PROBLEMS} more; --json lists all")
    for component, run_ids in sorted(found.unknown.items()):
        whose = f"{counted(len(run_ids), 'run')} not checked: {'its' if len(run_ids) == 1 else 'their'}"
        typer.echo(visible(f"{whose} {component} is not known here{CURE}"))


def _shown(verdicts: Iterable[Recomputed], *, quiet: bool) -> list[Recomputed]:
    """Return the verdicts, and print each as it comes unless the user wants JSON."""
    shown = []
    for verdict in verdicts:
        shown.append(verdict)
        if not quiet:
            why = f": {verdict.why}" if verdict.why else ""
            typer.echo(visible(f"{verdict.run_id}, {counted(verdict.rounds, 'round')} again: {verdict.verdict}{why}"))
    if not shown and not quiet:
        typer.echo("there is no finished run to execute again")
    return shown
