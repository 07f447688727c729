"""The runs that a user names: those of a store, of its sweeps, single ones, or those of exported files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flbench.cli.targets import entry_of, find_targets
from flbench.errors import StoreUnusable
from flbench.exchange.transfer import FilesSource
from flbench.metric_specs import Record
from flbench.report.runs import Run, collect
from flbench.run_sources import Reason, StoredRun, StoreSource, notes_of, readable
from flbench.store import Store, read_plan, read_search


@dataclass(frozen=True)
class StoredRuns:
    """Runs, each once, up to the most rounds that were requested; ``notes`` say which are left out, and why."""

    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()


def runs_of_store(store: Store, names: Sequence[str] = ()) -> StoredRuns:
    """Return the runs of sweeps and single runs; without names, all runs that were started or planned.

    Raises:
        UserError: a name matches nothing, or several runs.
    """
    reasons: Counter[Reason] = Counter()
    damaged: list[str] = []
    source = StoreSource(store)
    if names:
        targets = find_targets(store, names)
        plans, single = targets.plans, [entry_of(store, run_id).parse() for run_id in targets.run_ids]
    else:
        planned = store.planned_ids()
        plans = tuple(store.sweep_dirs())
        single = readable((run for run in source.stored_runs() if run.run_id not in planned), reasons)
    found: dict[str, Run] = {}
    for plan in plans:
        try:
            entries, search = read_plan(plan / "plan.jsonl"), read_search(plan)
        except StoreUnusable as error:
            damaged.append(str(error))
            continue
        planned_runs = (StoredRun.read(entry.run_id, entry.parse) for entry in entries)
        _take(found, collect(source, readable(planned_runs, reasons, "planned run"), search=search).runs)
    _take(found, collect(source, single).runs)
    return StoredRuns(tuple(found.values()), (*damaged, *notes_of(reasons)))


def runs_of_files(files: Iterable[Path]) -> StoredRuns:
    """Return the runs of exported files, or of folders of them."""
    paths = [path for file in files for path in (sorted(file.glob("*.parquet")) if file.is_dir() else [file])]
    collection = collect(FilesSource(paths))
    return StoredRuns(collection.runs, collection.left_out)


def newest_record(store: Store, run: Run) -> Record | None:
    """Return the last evaluation of a run, finished or not; None before the first."""
    if run.record is not None or run.result is not None:
        return run.record
    attempts = store.run(run.run_id).attempts()
    return attempts[-1].last_record() if attempts else None


def _take(found: dict[str, Run], runs: Iterable[Run]) -> None:
    """Add runs; of two requests for one run the longer stays."""
    for run in runs:
        known = found.get(run.run_id)
        if known is None or known.rounds < run.rounds:
            found[run.run_id] = run
