"""What ``flbench sweep --dry-run`` prints: the number of runs, the cells, what is done, and the remaining time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from flbench.cli.boundary import print_json
from flbench.cli.screen import plain_table, wide_console
from flbench.config import Experiment, Federated, Training, label, short_name
from flbench.config.local_steps import mean_steps
from flbench.launch.resources import usable_cores
from flbench.messages import counted, format_scalar
from flbench.store import Plan, Races, RunRequest, Store
from flbench.sweeps import Sweep

#: Cells shown of a long sweep, half of them from its end.
SHOWN = 40


def print_dry_run(
    sweep: Sweep, store: Path, *, workers: int | None = None, rerun: bool = False, as_json: bool = False
) -> None:
    """Print a plan and how much of it a store has, without executing anything.

    Args:
        sweep: the plan.
        store: the store's directory, which need not exist; it is not created.
        workers: how many runs execute at a time; default: as the sweep says, or as the cores allow.
        rerun: whether finished runs would be executed again.
        as_json: print JSON instead: the ``summary``, ``changed_code`` (why finished runs are executed again), and for
            each of the ``cells`` its ``cell_id``, the ``values`` of the varying fields as people write them, and its
            numbers of ``runs`` and ``done`` runs.
    """
    from flbench.planning import changed_code  # imports numpy: a Tab would take half as long again

    backend_workers: int | None = getattr(sweep.spec.backend, "workers", None)
    workers = workers or backend_workers or max(1, usable_cores() // sweep.spec.resources.cpus)
    found = finished_runs(sweep, store)
    changed = changed_code(Store(store, create=False), found.runs) if Store.exists(store) else ()
    by_cell: dict[str, list[Experiment]] = {}
    for run in found.runs:
        by_cell.setdefault(run.cell_id, []).append(run)
    cells: list[dict[str, Any]] = [
        {
            "cell_id": cell_id,
            "values": {
                field: label(value) for field in sweep.varying if (value := getattr(runs[0], field, None)) is not None
            },
            "runs": len(runs),
            "done": sum(run.run_id in found.seconds for run in runs),
        }
        for cell_id, runs in by_cell.items()
    ]
    facts = {**summary(sweep, found, workers), "changed_code": list(changed), "cells": cells}
    if as_json:
        print_json(facts)
        return
    typer.echo(f"sweep {sweep.name} ({sweep.spec_hash}) from {sweep.spelled}{''.join(f', {o}' for o in sweep.options)}")
    for line in _arithmetic_lines(sweep, facts["search"]):
        typer.echo(f"  {line}")
    kinds: dict[str, dict[int, dict[str, Any]]] = {}  # a table for each: kinds differ in their fields
    for number, cell in enumerate(cells, 1):
        kinds.setdefault(cell["values"].get("kind", ""), {})[number] = cell
    for kind, numbered in kinds.items():
        table = _table_of(sweep.varying, numbered)
        table.title = f"{kind}:" if len(kinds) > 1 else None
        wide_console().print(table)
    typer.echo(f"done in {store}: {facts['done']:,} of {counted(facts['runs'], 'run')}; to run: {facts['missing']:,}")
    for line in changed:
        typer.echo(line)
    seconds = facts["estimated_seconds"]
    if not facts["missing"]:
        typer.echo("nothing is left to run")
    elif seconds is None:
        typer.echo("remaining time: not known until a run of this sweep has finished")
    else:
        more = f", and for {counted(found.to_come, 'run')} of its search at most" if found.to_come else ""
        typer.echo(f"remaining time: about {_duration(seconds)} with {counted(workers, 'worker')}{more}")
    if rerun and facts["done"]:
        typer.echo(f"--rerun: {counted(facts['done'], 'finished run')} would be executed again, too")


class Finished(NamedTuple):
    """The runs of a sweep, those that its search has added last, as a store has them."""

    runs: Sequence[Experiment]
    seconds: Mapping[str, float]  # of a round, as measured, for each run that has finished, by id
    to_come: int = 0  # how many runs the search may add at most


def finished_runs(sweep: Sweep, store: Path) -> Finished:
    """Return the runs of a sweep and what a store, which need not exist, has of them."""
    search, runs = sweep.search, list(sweep.experiments)
    if not Store.exists(store):
        races_of = [] if search is None else search.races((run.run_id, run.cell_id, run.to_json()) for run in runs)
        return Finished(runs, {}, 0 if search is None else search.most_to_come(races_of))
    opened, attempts = Store(store, create=False), sweep.spec.retry.max_attempts
    there = set(opened.run_ids())  # one listing: looking for each of 100,000 runs would take minutes
    races = None if search is None else Races(opened, Plan.of(runs), search, attempts)
    if races is not None:
        races.refresh()
        runs += [entry.parse() for entry in races.plan[len(runs) :]]
    finished = {}
    for index, run in enumerate(runs):
        request = RunRequest.of(run)
        if races is not None and races.standing(index).dropped:
            request = RunRequest.of({**run.to_json(), "rounds": races.standing(index).rung})
        if run.run_id in there and (result := opened.run(run.run_id).result_for(request)) is not None:
            finished[run.run_id] = float(result.final.get("seconds", result.seconds)) / max(1, result.rounds)
    return Finished(runs, finished, 0 if races is None else races.to_come)


def summary(sweep: Sweep, found: Finished, workers: int) -> dict[str, Any]:
    """Return the state of a plan as JSON.

    Returns:
        ``name, spec_hash, arithmetic, varying, runs, done, missing``, ``search`` (null without one; with the expected
        rounds, those of the case that all settings tie, and the most runs ``to_come``) and ``estimated_seconds`` (wall
        time with ``workers``, without the runs to come; null before any run has finished).
    """
    missing = [run for run in found.runs if run.run_id not in found.seconds]
    seconds = estimate(found.runs, missing, found.seconds, workers)
    search: dict[str, Any] | None = None
    if sweep.search is not None:
        races = sweep.search.races((run, run.cell_id, run.to_json()) for run in sweep.experiments)
        added = sum(run.rounds for run in found.runs[len(sweep.experiments) :])
        expected = sum(map(sweep.search.expected_rounds, races)) + added
        largest = sum(run.rounds for run in found.runs)
        settings = [list(sizes) for sizes in sorted({tuple(sweep.search.sizes(race)) for race in races})]
        search = {
            **sweep.search.to_json(),
            "settings": settings,
            "expected_rounds": expected,
            "largest_rounds": largest,
            "added": len(found.runs) - len(sweep.experiments),
            "to_come": found.to_come,
        }
        seconds = None if seconds is None else seconds * (expected / largest)
    return {
        "name": sweep.name,
        "spec_hash": sweep.spec_hash,
        "arithmetic": dataclasses.asdict(sweep.arithmetic),
        "varying": list(sweep.varying),
        "runs": len(found.runs),
        "done": len(found.runs) - len(missing),
        "missing": len(missing),
        "search": search,
        "estimated_seconds": seconds,
    }


def estimate(
    runs: Collection[Experiment], missing: Collection[Experiment], seconds_per_round: Mapping[str, float], workers: int
) -> float | None:
    """Return the wall seconds that the missing runs will take; None if no run has been measured.

    A run is taken to be as slow as the median of the measured runs of its kind, data, network, norm, method and work
    per round; if there are none, as slow in proportion to its work as the measured runs on average.
    """
    if not missing:
        return 0.0
    measured: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        if (seconds := seconds_per_round.get(run.run_id)) is not None:
            measured.setdefault(_cost(run), []).append(seconds)
    if not measured:
        return None
    rate = fmean(seconds / work for (*_, work), found in measured.items() for seconds in found)
    known = {cost: median(found) for cost, found in measured.items()}
    costs = ((max(1, run.rounds), _cost(run)) for run in missing)  # a study has no rounds
    total: float = sum(rounds * known.get(cost, rate * cost[-1]) for rounds, cost in costs)
    return total / min(workers, len(missing))


def _cost(run: Experiment) -> tuple[Any, ...]:
    """Return what runs share whose rounds take equally long; the last is the work of a round.

    The work is the approximate number of samples, and 1 for a study, whose rounds are measured as a whole.
    """
    if not isinstance(run, Training):
        return run.cell_id, 1
    clients, cohort = (run.clients, run.cohort_size) if isinstance(run, Federated) else (1, 1)
    if run.local_epochs is not None:
        whole: tuple[int, int] = getattr(run.dataset, "counts", None) or (1, 1)
        work = math.ceil(whole[0] * cohort / clients) * mean_steps(run.local_epochs)
    else:
        work = cohort * mean_steps(run.local_steps or 1) * run.batch_size
    method = getattr(run, "method", run.norm)
    return run.kind, run.dataset, run.model, run.norm.name, method.name, run.precision, work


def _arithmetic_lines(sweep: Sweep, search: Mapping[str, Any] | None) -> Iterator[str]:
    count = sweep.arithmetic
    for index, grid in enumerate(count.grids):
        product = " x ".join(f"{length} {name}" for name, length in grid.axes) or "no axes"
        yield f"{'grid' if len(count.grids) == 1 else f'grids[{index}]'}: {product} = {counted(grid.cells, 'cell')}"
    for index, cells in enumerate(count.excluded):
        yield f"exclude[{index}]: {_rule(sweep.spec.exclude[index])} leaves out {counted(cells, 'cell')}"
    for index, cells in enumerate(count.overridden):
        rule = sweep.spec.overrides[index]
        yield f"overrides[{index}]: {_rule(rule.if_)} gets {_rule(rule.set)} in {counted(cells, 'cell')}"
    if count.duplicates:
        yield f"duplicates: {counted(count.duplicates, 'cell')} of a grid equal earlier ones"
    if count.unselected:
        yield f"--only leaves out {counted(count.unselected, 'cell')}"
    possible = counted(count.runs + count.beyond_limit, "run")
    *fewer, most = count.seeds
    seeds = " or ".join([*map(str, fewer), counted(most, "seed")])
    yield f"total: {counted(count.cells, 'cell')} x {seeds} = {possible}"
    if count.beyond_limit:
        yield f"--limit keeps the first {counted(count.runs, 'run')}"
    if search is not None:
        sizes = " or ".join(" -> ".join(map(str, sizes)) for sizes in search["settings"])
        rungs = "; ".join(", ".join(map(str, ladder)) for ladder in search["rungs"])
        yield f"search: {sizes} values of {' and '.join(search['axes'])} by {search['metric']}, to rounds {rungs}"
        if refine := search.get("refine"):
            steps = f"at most {counted(refine['max_steps'], 'step')} of 2 values for every row of a column"
            runs = f"{counted(search['added'], 'run')} so far, at most {search['to_come']:,} more"
            ends = " and is flat" if refine["until"] == "flat" else ""
            yield f"refine: {steps}, until none gains {refine['margin']:g}{ends}; {runs}"
        expected, largest = search["expected_rounds"], search["largest_rounds"]
        share = f"{100 * expected / largest:.0f} %"
        if expected < largest:
            yield f"rounds: {expected:,} expected, {share} of all; at most {largest:,}, if all settings tie"
    federated = (run for run in sweep.experiments if isinstance(run, Federated))
    fixed = (run for run in federated if not run.cohort_varies)
    shares = {(run.clients, run.participation): run.cohort_size for run in fixed}
    for (clients, participation), cohort in shares.items():
        if not math.isclose(clients * participation, cohort, rel_tol=1e-9):
            of = format_scalar(participation)
            yield f"participation {of} of {counted(clients, 'client')} is rounded to {cohort} of {clients:,} in a round"


def _rule(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


def _table_of(varying: Sequence[str], cells: Mapping[int, Mapping[str, Any]]) -> Table:
    """Return a table of cells of one kind, by their numbers and the fields in which they differ."""
    found = {field: {cell["values"].get(field, "-") for cell in cells.values()} for field in varying}
    fields = [field for field, values in found.items() if len(values) > 1 or (len(cells) == 1 and values != {"-"})]
    table = plain_table(["#"])
    for field in fields:
        table.add_column(short_name(field), overflow="fold")
    table.add_column("done")
    half = SHOWN // 2 if len(cells) > SHOWN else len(cells)
    for index, (number, cell) in enumerate(cells.items()):
        if index < half or index >= len(cells) - half:
            values = [escape(cell["values"].get(field, "-")) for field in fields]
            table.add_row(f"{number:,}", *values, f"{cell['done']}/{cell['runs']}")
        elif index == half:
            table.add_row(*["..."] * len(table.columns))
    return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
