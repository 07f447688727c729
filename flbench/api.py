"""flbench from Python: ``flbench.load``, ``run``, ``sweep``, ``model``, ``predict`` and ``problem``, which call these.

They use the same stores and workers as the commands, so that a notebook repeats no run that a command has finished, and
vice versa. Results are pandas frames.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.choices import DEFAULT_STORE, Device, SelectBy
from flbench.config import Experiment, Federated, parse_experiment, require_device
from flbench.errors import UserError
from flbench.exchange.transfer import FilesSource
from flbench.launchers import SweepWorkers, require_computable, run_launcher
from flbench.notebook import notebook_bar
from flbench.orchestrate import Orchestrator
from flbench.planning import prepare_runs, resolve_data, write_plan
from flbench.report import dataframes
from flbench.report.preview import check_report_of
from flbench.report.runs import collect
from flbench.run_sources import Source, StoreSource
from flbench.store import Store, plan_name
from flbench.sweeps import load_sweep

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from flbench.trained import Trained
    from flbench.training_problem import Problem

#: One path or several, to stores or exported files.
Paths = str | Path | Iterable[str | Path]


def load(
    source: Paths | None = None,
    *,
    spec: str | Path | None = None,
    curves: bool = False,
    select_by: SelectBy = "last",
) -> pd.DataFrame:
    """Return the runs of a store or of exported files as the tidy frame that the report uses.

    Args:
        source: a store, or exported files (``*.parquet``, or a folder of them); None: $FLBENCH_STORE, else ``runs``.
        spec: a sweep file, to return exactly its runs, whether they exist or not; None: every run.
        curves: return one row per evaluation instead of one row per run.
        select_by: which round's record counts: ``last``, ``tail`` or ``val-tail`` (the mean of the last five
            evaluations), ``val`` (the best accuracy on held-out training data) or ``oracle`` (the best accuracy on the
            test data).

    Returns:
        One row per run: ids, every field (``method``, ``method.mu``, ...), ``state``, the metrics at the round that
        counts, provenance; ``changed_plugins`` names the plug-ins whose source code has changed since. With ``curves``
        one row per evaluation: ``run_id``, ``round``, metrics. Accuracies are fractions.

    Warns:
        UserWarning: some runs are left out, because their experiments cannot be read (those with a component of a
            plug-in need its file in $FLBENCH_PLUGINS), or are of an earlier version of a component; or some were
            computed several times, with different numerics, of which one result counts.

    Raises:
        UserError: there is no such store or file.
    """
    found = _source(source)
    sweep = load_sweep(spec) if spec is not None else None
    requests, search = (sweep.experiments, sweep.search) if sweep is not None else (None, None)
    collection = collect(found, requests, select_by=select_by, search=search)
    for note in collection.left_out:
        warnings.warn(f"left out: {note}", stacklevel=2)
    return dataframes.curves(found, collection.runs) if curves else dataframes.tidy(collection.runs)


def run(
    *,
    store: str | Path | None = None,
    data: str | Path | None = None,
    device: Device = "auto",
    **fields: Any,
) -> pd.DataFrame:
    """Return the evaluations of one experiment, one per row; run it in this process unless the store has it.

    ``kind="rank"`` (or ``sharpness``, ``deep``) runs a study, whose rows hold what it measures.

    Args:
        store: the store's directory; None: $FLBENCH_STORE, else ``runs``.
        data: folder of the data sets; None: the default one.
        device: what to compute on; ``auto`` selects CUDA if there is any, else the CPU.
        fields: of the experiment, as in a sweep: ``norm="ln"``, ``method={"name": "fedprox", "mu": 0.1}``, ``E=10``.

    Raises:
        UserError: a field is invalid, the device is missing or cannot compute the run, the data are missing or damaged,
            or the run failed.
    """
    path, root = _store_path(store), None if data is None else Path(data)
    given = parse_experiment(fields)
    require_computable(given, device)
    (experiment,), notes = resolve_data([given], path, root, "data")
    opened = Store(path)
    _warn((*notes, *prepare_runs(opened, [experiment])))
    found = opened.run(experiment.run_id)
    if found.state(experiment).status in ("failed", "lost"):
        found.reset_failures()
    _execute(opened, "", [experiment], lambda: run_launcher(opened, experiment, root, device), 1)
    source = StoreSource(opened)
    return dataframes.curves(source, collect(source, [experiment]).runs)


def sweep(
    path: str | Path,
    *,
    store: str | Path | None = None,
    data: str | Path | None = None,
    sets: Sequence[str] = (),
    workers: int | None = None,
) -> pd.DataFrame:
    """Return the runs of a sweep file as ``load`` does; first run those that are missing, with workers on this machine.

    Args:
        path: the sweep file, or its name as for `flbench sweep`.
        store: the store's directory; None: $FLBENCH_STORE, else ``runs``.
        data: folder of the data sets; None: the default one.
        sets: changes of the file, ``PATH=VALUE``, as for ``flbench sweep --set``.
        workers: how many; None: as the file says, else as many as cores and GPUs have room for.

    Raises:
        UserError: the file is invalid, or its data are missing or damaged. Failed runs raise nothing: their ``state``
            says so.
    """
    root = None if data is None else Path(data)
    loaded = load_sweep(path, sets)
    check_report_of(loaded)
    experiments, notes = resolve_data(loaded.experiments, _store_path(store), root, "data")
    loaded = loaded.planned_as(experiments)
    wanted = SweepWorkers.of(loaded, root, backend="local", count=workers)
    require_device(experiments, lambda: wanted.options.device)
    opened = Store(_store_path(store))
    plan = plan_name(write_plan(opened, loaded))
    _warn((*notes, *prepare_runs(opened, experiments)))
    launcher = partial(wanted.launcher, opened, plan, experiments)
    _execute(opened, plan, experiments, launcher, wanted.options.max_attempts, raises=False)
    select_by = loaded.spec.report.select_by
    collection = collect(StoreSource(opened), experiments, select_by=select_by, search=loaded.search)
    return dataframes.tidy(collection.runs)


def model(
    run_id: str,
    round: int | None = None,
    *,
    client: int = 0,
    store: str | Path | None = None,
    data: str | Path | None = None,
) -> nn.Module:
    """Return the network of a run with its trained weights, on the CPU and in evaluation mode.

    ``features, logits = model(images)`` takes floats in [0, 1] of shape (M, C, H, W). Where parts of the model stay on
    the clients (FedBN, SiloBN), they are those of ``client``; otherwise all clients have the server's model.

    Args:
        run_id: the beginning of the run's id.
        round: after which round; None: the last one that is saved. A finished run has its last round.
        client: whose model.
        store: the store's directory; None: $FLBENCH_STORE, else ``runs``.
        data: folder of the data sets; None: the default one.

    Raises:
        UserError: there is no such run, or no such round is saved (the message lists the saved ones).
    """
    return _trained(run_id, round, client, store, data).network


def predict(
    run_id: str,
    images: Any,
    round: int | None = None,
    *,
    client: int = 0,
    store: str | Path | None = None,
    data: str | Path | None = None,
) -> pd.DataFrame:
    """Return the probability of each class for each image by the network of a run.

    Args:
        run_id: the beginning of the run's id.
        images: array or tensor (M, C, H, W), or (M, H, W) without colours; integers as in the data set, or floats in
            [0, 1].
        round: as in ``model``, like the other arguments.
        client: whose model.
        store: the store's directory.
        data: folder of the data sets.

    Returns:
        One row an image, one column a class by its name; ``.idxmax(axis=1)`` is the predicted class.

    Raises:
        UserError: as in ``model``, or the images have another shape than those of the data set.
    """
    return _trained(run_id, round, client, store, data).predict(images)


def problem(*, data: str | Path | None = None, **fields: Any) -> Problem:
    """Return what a federated experiment trains on, without training it and without a store.

    It has the samples, the rows of each client (training, held-out, test), the initial weights, and for each round the
    cohort, the numbers of local steps and the rows of every batch: enough to compute a run by a program of one's own.

    Args:
        data: folder of the data sets; None: the default one.
        fields: of the experiment, as for ``run``.

    Raises:
        UserError: a field is invalid, the experiment is not federated, or the data are missing or damaged.
    """
    experiment = parse_experiment(fields)
    if not isinstance(experiment, Federated):
        raise UserError(f"kind: flbench.problem shows federated experiments, got {experiment.kind}")
    from flbench.training_problem import problem_of  # imports torch

    return problem_of(experiment, None if data is None else Path(data))


def _trained(run_id: str, round: int | None, client: int, store: str | Path | None, data: str | Path | None) -> Trained:
    from flbench.trained import trained  # imports torch

    opened = Store(_store_path(store), create=False)
    found = opened.id_beginning_with(run_id)
    if found is None:
        raise UserError(f"{run_id}: no run of {opened.root} has this id; flbench.load() and `flbench runs` list them")
    return trained(opened.run(found), round, None if data is None else Path(data), client)


def _execute(
    store: Store, plan: str, experiments: Sequence[Experiment], launcher: Any, max_attempts: int, *, raises: bool = True
) -> None:
    """Execute the experiments; with ``raises`` a failed run raises UserError."""
    outcome = Orchestrator(store, plan, experiments, launcher, max_attempts=max_attempts).run(show=notebook_bar())
    if outcome.interrupted:
        raise KeyboardInterrupt
    for seen in outcome.failures if raises else ():
        log = f"; log: {seen.log}" if seen.log else ""
        raise UserError(f"run {seen.run_id} failed ({seen.outcome}): {seen.state.message or 'no message'}{log}")


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        logging.getLogger(__name__).warning("%s", line)


def _store_path(store: str | Path | None) -> Path:
    return Path(store if store is not None else os.environ.get("FLBENCH_STORE", DEFAULT_STORE))


def _source(source: Paths | None) -> Source:
    """Return a store or exported files as a source of runs; raises UserError if there is neither."""
    if source is not None and not isinstance(source, str | Path):
        return FilesSource([Path(one) for one in source])
    path = _store_path(source)
    if path.suffix == ".parquet":
        return FilesSource([path])
    files = sorted(path.glob("*.parquet"))
    return FilesSource(files) if files else StoreSource(Store(path, create=False))
