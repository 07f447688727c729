"""Before anything is written: which data experiments are on, and whether they can be used here.

The id of a run holds the content of its data (``flbench.data.datasets.Dataset.content``). It is looked up once, here,
from the files; later, workers compare what they load with what the plan names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from flbench.config import Experiment, plugins_of
from flbench.data.datasets import Dataset, load, load_named
from flbench.errors import UserError
from flbench.registry import DATASETS
from flbench.report import transfer
from flbench.report.contents import by_dataset, named_by, renamed
from flbench.report.sources import StoreSource
from flbench.store import Lease, RunRequest, Store, encode_plan, files, read_plan
from flbench.store.plans import refuse_newer
from flbench.sweeps import Sweep

#: What must be there: the ``data``, since runs are to be executed here; their ``content``, since they are to be
#: executed elsewhere; or ``nothing``, since nothing is to be executed.
Needed = Literal["data", "content", "nothing"]


def name_data(
    experiments: Sequence[Experiment], root: Path, data_root: Path | None, needed: Needed
) -> list[Experiment]:
    """Return the experiments on named data, each run once.

    Where the files of a data set cannot be used, its official content is meant, or else the only one that the store
    has runs on.

    Args:
        experiments: as the user gave them.
        root: the store; nothing is written there, and it need not exist.
        data_root: folder of the data sets; None: the usual one.
        needed: what must be known; not so for runs that are finished.

    Raises:
        UserError: data that are needed are missing, damaged, or other than the experiments name.
    """
    named: dict[Dataset, Dataset] = {}
    problems: dict[Dataset, UserError] = {}
    for dataset in by_dataset(experiments):
        try:
            data = load_named(dataset, data_root) if dataset.content else load(dataset, data_root)
            named[dataset] = dataset.holding(data.fingerprint)
        except UserError as problem:
            problems[dataset] = problem
    found = renamed(experiments, named)
    if problems:
        store = Store(root, create=False) if Store.exists(root) else None
        found = named_by(StoreSource(store), found) if store else found
        for given, experiment in zip(experiments, found, strict=True):
            used: Dataset | None = getattr(given, "dataset", None)
            if used in problems and not (store and store.run(experiment.run_id).result_for(experiment)):
                _raise_if_needed(problems[used], getattr(experiment, "dataset", used), needed)
    return list({experiment.run_id: experiment for experiment in found}.values())


def _raise_if_needed(problem: UserError, dataset: Dataset, needed: Needed) -> None:
    if needed == "data":
        raise problem
    if needed == "content" and not (dataset.content or dataset.official):
        raise UserError(
            f"the content of the data set {dataset.label()} is not known here: plan its runs where the data are, or "
            f"name it. There, 'flbench data verify {dataset.label()}' prints its fingerprint; here, give "
            f"--set dataset.content=FINGERPRINT. {problem}"
        ) from None


def name_data_of(sweep: Sweep, root: Path, data_root: Path | None, needed: Needed) -> Sweep:
    """As ``name_data``, for all experiments of a sweep."""
    return sweep.planned_as(name_data(sweep.experiments, root, data_root, needed))


def as_planned(sweep: Sweep, directory: Path) -> Sweep:
    """A sweep on the data that a plan in a store names."""
    path = directory / "plan.jsonl"
    plan = read_plan(path) if b'"content":' in path.read_bytes() else ()
    raws = {str(raw): raw for entry in plan if (raw := entry.experiment.get("dataset")) and raw.get("content")}
    datasets: list[Dataset] = [DATASETS.parse(raw) for raw in raws.values()]
    named = {dataset.holding(None): dataset for dataset in datasets}
    return sweep.planned_as(renamed(sweep.experiments, named)) if named else sweep


def begin(store: Store, experiments: Sequence[Experiment], *, rerun: bool = False) -> list[str]:
    """Prepare what is stored of some runs for their execution; return lines for the user."""
    with store.usable():
        _take_over(store, experiments)
        return [_supersede(store, experiments)] if rerun else _outdated(store, experiments)


def _take_over(store: Store, experiments: Sequence[Experiment]) -> None:
    """Copy results that were stored before runs named their data to the ids that the runs have now."""
    earlier = [run_id for experiment in experiments if (run_id := _earlier_id(store, experiment))]
    results, _ = transfer.export_runs(store, earlier)
    if results:
        lease = Lease.here()
        with store.heartbeat(lease):
            transfer.import_runs(store, results, lease)


def _earlier_id(store: Store, experiment: Experiment) -> str | None:
    """The id that a run had, where something is stored under it and nothing under its own."""
    dataset = getattr(experiment, "dataset", None)
    if dataset is None or dataset.content is None or store.run(experiment.run_id).path.exists():
        return None
    run_id = experiment.on(dataset.holding(None)).run_id
    return run_id if store.run(run_id).path.exists() else None


def _outdated(store: Store, experiments: Sequence[Experiment]) -> list[str]:
    """A line for each plug-in whose source code has changed since finished runs were computed with it."""
    changed: Counter[str] = Counter()
    cells = {experiment.cell_id: experiment for experiment in experiments}
    with_plugins = {cell_id for cell_id, experiment in cells.items() if plugins_of(experiment.to_json())}
    for experiment in (one for one in experiments if one.cell_id in with_plugins):
        run, request = store.run(experiment.run_id), RunRequest.of(experiment)
        if run.result_for(request) is None:
            before = run.result_for(dataclasses.replace(request, plugins=""))
            recorded = str(before.environment.get("plugins", "")).split() if before else []
            changed.update(name.partition("=")[0] for name in {*request.plugins.split()}.difference(recorded) if before)
    return [
        f"The source code of the plug-in {package} has changed: executing {count} finished runs again."
        for package, count in sorted(changed.items())
    ]


def _supersede(store: Store, experiments: Sequence[Experiment]) -> str:
    """Let finished runs be executed again (``--rerun``); return a line that says how many."""
    runs = ((store.run(experiment.run_id), experiment) for experiment in experiments)
    count = sum(run.result_for(experiment) is not None and run.supersede() for run, experiment in runs)
    return f"--rerun: executing {count} finished runs again; their results so far are in superseded/ of their folders."


def write_plan(store: Store, sweep: Sweep) -> Path:
    """Put a sweep's spec and plan into the store; what is there already and equal stays untouched."""
    directory = store.sweep_dir(sweep.name, sweep.spec_hash)
    spec = "".join(f"# {option}\n" for option in sweep.options) + sweep.source
    with store.usable():
        files.make_directory(directory, store.root)
        for name, content in (("spec.yaml", spec.encode()), ("plan.jsonl", encode_plan(sweep.experiments))):
            path = directory / name
            there = files.read_bytes(path)
            if there != content:
                refuse_newer(path, there or b"")
                files.replace(path, content)
    return directory
