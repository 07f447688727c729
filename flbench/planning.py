"""From a sweep to its plan in the store: the data that experiments are on, and the runs that are stored already.

A run's id depends on the content of its data (``flbench.data.datasets.Dataset.content``). It is looked up here, once,
from the files; workers compare the data that they load with what the plan names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from flbench.config import Experiment, parse_experiment, plugins_of
from flbench.data.datasets import Dataset, load, load_named
from flbench.data.preflight import misfits
from flbench.errors import DataMissing, UserError
from flbench.exchange import transfer
from flbench.messages import counted
from flbench.plugin_files import code_notes
from flbench.pretrained import check_starts, copy_weights, with_found_starts
from flbench.registry import DATASETS
from flbench.run_sources import StoreSource, by_dataset, named_by, renamed, with_starts_of, with_stored_starts
from flbench.store import (
    Heartbeat,
    Lease,
    RunRequest,
    Store,
    changed_plugins,
    encode_plan,
    files,
    read_plan,
    strict_json,
)
from flbench.store.plans import SEARCH, refuse_newer
from flbench.sweeps import Sweep

#: What must exist: the ``data``, if runs are executed here; their ``content``, if they are executed on another machine;
#: or ``nothing``, if nothing is executed.
Needed = Literal["data", "content", "nothing"]


#: Beside a plan's spec.yaml: the options of the sweep's command line.
OPTIONS = "options.json"


class ResolvedData(NamedTuple):
    """Experiments that name the content of their data, and what users should know about how these were read."""

    experiments: list[Experiment]
    notes: list[str]


def resolve_data(experiments: Sequence[Experiment], root: Path, data_root: Path | None, needed: Needed) -> ResolvedData:
    """Return the experiments with the content of their data, each run once.

    If the files of a data set cannot be used, its official content is taken, or else the only content on which the
    store has runs.

    Args:
        experiments: as the user gave them.
        root: the store; nothing is written to it, and it need not exist.
        data_root: folder of the data sets; None: the default one.
        needed: what must exist for the runs that are not finished.

    Raises:
        UserError: data that are needed are missing, damaged, or other than the experiments name, or a run that is not
            finished cannot run on them.
    """
    named: dict[Dataset, Dataset] = {}
    problems: dict[Dataset, UserError] = {}
    misfit: dict[str, UserError] = {}
    notes: list[str] = []
    for dataset, on_it in by_dataset(experiments).items():
        try:
            data = load_named(dataset, data_root) if dataset.content else load(dataset, data_root)
        except UserError as problem:
            problems[dataset] = problem
            continue
        named[dataset] = dataset.holding(data.fingerprint)
        notes += (f"{dataset.label()}: {note}" for note in data.notes)
        misfit |= {experiment.run_id: problem for experiment, problem in misfits(on_it, dataset, data)}
    found = renamed(experiments, named)
    if problems or misfit:
        store = Store(root, create=False) if Store.exists(root) else None
        found = named_by(StoreSource(store), found) if store and problems else found
        for given, experiment in zip(experiments, found, strict=True):
            used = cast(Dataset, getattr(given, "dataset", None))
            if used not in problems and given.run_id not in misfit:
                continue
            if store and store.run(experiment.run_id).result_for(experiment):
                continue
            if used in problems:
                _raise_if_needed(problems[used], cast(Any, experiment).dataset, needed)
            else:
                _raise_misfit(misfit[given.run_id], needed)
    found = _with_starts(found, root, needed)
    return ResolvedData(list({experiment.run_id: experiment for experiment in found}.values()), notes)


def _with_starts(experiments: Sequence[Experiment], root: Path, needed: Needed) -> list[Experiment]:
    """Return the experiments with the weights that they start from, or those of stored runs where none can be found."""
    try:
        return with_found_starts(experiments, root)
    except UserError:
        store = Store(root, create=False) if Store.exists(root) else None
        known = with_stored_starts(StoreSource(store), experiments) if store else list(experiments)
        finished = store is not None and all(store.run(one.run_id).result_for(one) for one in known)
        if needed != "nothing" and not finished:
            raise
        return known


def _raise_misfit(problem: UserError, needed: Needed) -> None:
    # A file of rows that is missing here, and whose content the sweep names, can be on the machine that executes.
    if needed == "data" or (needed == "content" and not isinstance(problem, DataMissing)):
        raise problem


def _raise_if_needed(problem: UserError, dataset: Dataset, needed: Needed) -> None:
    if needed == "data":
        raise problem
    if needed == "content" and not (dataset.content or dataset.official):
        raise DataMissing(
            f"the content of the data set {dataset.label()} is not known here: plan its runs where the data are, or "
            f"name it. There, 'flbench data verify {dataset.label()}' prints its fingerprint; here, give "
            f"--set dataset.content=FINGERPRINT. {problem}"
        ) from None


def with_planned_data(sweep: Sweep, directory: Path) -> Sweep:
    """Return a sweep on the data, and from the weights, that a plan in a store names."""
    path = directory / "plan.jsonl"
    plan = read_plan(path) if b'"content":' in path.read_bytes() else ()
    raws = {str(raw): raw for entry in plan if (raw := entry.experiment.get("dataset")) and raw.get("content")}
    datasets: list[Dataset] = [DATASETS.parse(raw) for raw in raws.values()]
    named = {dataset.holding(None): dataset for dataset in datasets}
    found = renamed(sweep.experiments, named) if named else list(sweep.experiments)
    starts = [entry.experiment for entry in plan if entry.experiment.get("init", {}).get("content")]
    return sweep.planned_as(with_starts_of(map(parse_experiment, starts), found))


def prepare_runs(store: Store, experiments: Sequence[Experiment], *, rerun: bool = False) -> list[str]:
    """Prepare stored runs for their execution, with ``rerun`` from their start; return lines for the user."""
    with store.usable():
        _import_earlier(store, experiments)
        copy_weights(store, experiments)
        check_starts(one for one in experiments if not store.run(one.run_id).result_for(one))
        if not rerun:
            return list(changed_code(store, experiments))
        runs = ((store.run(experiment.run_id), experiment) for experiment in experiments)
        count = sum(run.result_for(experiment) is not None and run.supersede() for run, experiment in runs)
    again = counted(count, "finished run")
    return [f"--rerun: executing {again} again; earlier results are in superseded/ of their folders."]


def _import_earlier(store: Store, experiments: Sequence[Experiment]) -> None:
    """Copy results from the time when run ids did not depend on the data to the present ids that have none."""
    earlier = []
    for experiment in experiments:
        dataset = getattr(experiment, "dataset", None)
        if dataset is not None and dataset.content is not None and not store.run(experiment.run_id).path.exists():
            run_id = experiment.having(dataset=dataset.holding(None)).run_id
            earlier += [run_id] if store.run(run_id).path.exists() else []
    results, _ = transfer.export_runs(store, earlier)
    if results:
        lease = Lease.here()
        with Heartbeat(store.workers, lease):
            transfer.import_runs(store, results, lease)


def changed_code(store: Store, experiments: Sequence[Experiment]) -> tuple[str, ...]:
    """Return a line for each plug-in whose source code has changed since finished runs were computed with it."""
    changed: Counter[str] = Counter()
    cells = {experiment.cell_id: experiment for experiment in experiments}
    with_plugins = {cell_id for cell_id, experiment in cells.items() if plugins_of(experiment.to_json())}
    for experiment in (one for one in experiments if one.cell_id in with_plugins):
        run, request = store.run(experiment.run_id), RunRequest.of(experiment)
        if run.result_for(request) is None:
            before = run.result_for(dataclasses.replace(request, plugins=""))
            changed.update(changed_plugins(before.environment, request.plugins) if before else ())
    return code_notes(changed)


def write_plan(store: Store, sweep: Sweep) -> Path:
    """Write a sweep's spec and plan into the store, unless it has the same; return the plan's directory."""
    directory = store.sweeps / sweep.name / sweep.spec_hash
    contents = {
        "spec.yaml": sweep.source.encode(),
        OPTIONS: strict_json.pretty({"schema": 1, "options": list(sweep.options)}),
        "plan.jsonl": encode_plan(sweep.experiments),
    }
    if sweep.search is not None:
        contents = {SEARCH: strict_json.pretty(sweep.search.to_json()), **contents}
    with store.usable():
        files.make_directory(directory, store.root)
        for name, content in contents.items():
            path = directory / name
            stored = files.read_bytes(path)
            if stored != content:
                refuse_newer(path, stored or b"")
                files.replace(path, content)
    return directory
