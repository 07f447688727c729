"""Find what users name on the command line: a store, a sweep file, a sweep of the store, a run by its id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.completion import targets
from flbench.errors import UserError
from flbench.messages import by_similarity, did_you_mean
from flbench.store import Entry, Store, plan_name, read_plan
from flbench.sweeps import load_sweep

TargetsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SWEEP|RUN",
        help="Sweep files, names of sweeps in the store, or the beginnings of run ids.",
        show_default=False,
        autocompletion=targets,
    ),
]


@dataclass(frozen=True)
class Targets:
    """Whole sweeps, by the directories of their plans, and single runs, by their ids."""

    plans: tuple[Path, ...]
    run_ids: tuple[str, ...]


def find_targets(store: Store, names: Iterable[str]) -> Targets:
    """Resolve names; raises UserError for the first that matches nothing, or several runs."""
    plans: dict[Path, None] = {}
    run_ids: dict[str, None] = {}
    for name in names:
        found = find_plans(store, name)
        if found:
            plans.update(dict.fromkeys(found))
            continue
        run_ids[find_run(store, name, "a sweep file, the name of a sweep, or the beginning of a run's id")] = None
    return Targets(tuple(plans), tuple(run_ids))


def find_run(store: Store, name: str, expected: str = "the beginning of a run's id") -> str:
    """Return the id of the run that begins with some digits; raises UserError if none does, or several do."""
    found = store.id_beginning_with(name)
    if found is None:
        raise _unknown(store, name, expected)
    return found


def find_plans(store: Store, name: str) -> list[Path]:
    """Return the plans of a sweep file, of a sweep's name, or of ``NAME/HASH``; none if there is no such sweep.

    Raises:
        UserError: the file is no valid sweep, or was not started in this store.
    """
    directories = store.sweep_dirs()
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return _plans_of_file(store, name, directories)
    sweep, slash, digits = name.partition("/")
    plans = [path for path in directories if path.parent.name == sweep]
    return [path for path in plans if path.name.startswith(digits)] if digits or not slash else []


def expect_plans(store: Store, name: str) -> list[Path]:
    """Return the plans as ``find_plans`` does; raises UserError if there are none."""
    found = find_plans(store, name)
    if not found:
        raise _unknown(store, name, "a sweep file or the name of a sweep")
    return found


def entries_of(store: Store, targets: Targets) -> Iterator[Entry]:
    """Yield every run of the plans and every single run once, with the most rounds that were requested."""
    longest: dict[str, Entry] = {}
    for directory in targets.plans:
        for entry in read_plan(directory / "plan.jsonl", added=True):
            known = longest.get(entry.run_id)
            if known is None or known.experiment["rounds"] < entry.experiment["rounds"]:
                longest[entry.run_id] = entry
    yield from longest.values()
    for run_id in targets.run_ids:
        if run_id not in longest:
            yield entry_of(store, run_id)


def entry_of(store: Store, run_id: str) -> Entry:
    """Return a run with the most rounds that were requested; raises UserError if no readable file describes it."""
    try:
        started = [Entry.of(store.run(run_id).experiment())]
    except FileNotFoundError:
        started = []
    requested = [*started, *store.planned(run_id)]
    if not requested:
        raise UserError(f"{run_id}: its experiment.json is damaged and no plan names it")
    return max(requested, key=lambda entry: int(entry.experiment["rounds"]))


def _plans_of_file(store: Store, name: str, directories: Sequence[Path]) -> list[Path]:
    """Return the plans of a sweep file: one for each content of its data with which it was started."""
    from flbench.planning import with_planned_data  # imports numpy: a Tab would take half as long again

    sweep = load_sweep(name)
    alike = [path for path in directories if path.parent.name == sweep.name]
    planned = [
        path for path in alike if sweep.spec_hash == path.name or with_planned_data(sweep, path).spec_hash == path.name
    ]
    if planned:
        return planned
    others = [plan_name(path) for path in alike]
    hint = (
        f"with other contents or options it was: {', '.join(others)}" if others else f"flbench sweep {name} starts it"
    )
    raise UserError(f"{name}: this sweep was not started in {store.root}; {hint}")


def _unknown(store: Store, name: str, expected: str) -> UserError:
    known = by_similarity(name, sorted({directory.parent.name for directory in store.sweep_dirs()}))
    shown = name if name.isprintable() else repr(name)
    hint = did_you_mean(name, known) or ";"
    there = ", ".join(known) or "none"
    return UserError(f"{shown}: expected {expected} in {store.root}{hint} there are: {there}")
