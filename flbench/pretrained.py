"""Find the weights that runs start from, when they are planned: published ones, those of a run or of a sweep's runs.

Weights of runs are copied into the store (``weights/SHA256.safetensors``), so that a run that starts from them needs
neither the checkpoint nor the data of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from flbench.config import Experiment, label
from flbench.errors import DataMissing, UserError
from flbench.messages import counted
from flbench.models.starts import (
    PackageWeights,
    PlannedWeights,
    RunWeights,
    StoredWeights,
    SweepWeights,
    TorchvisionWeights,
    sha256,
)
from flbench.run_sources import StoreSource, named_by, start_is_open
from flbench.store import Store, files
from flbench.sweeps import find_file, load_sweep


def with_found_starts(experiments: Sequence[Experiment], root: Path) -> list[Experiment]:
    """Return the experiments, which name their data, with the weights that they start from; ``root`` is the store.

    Raises:
        DataMissing: a file, a run or its weights are missing.
        UserError: a start fits no run, or several.
    """
    if not any(start_is_open(experiment) for experiment in experiments):
        return list(experiments)
    finder = _Finder(root)
    return [finder.found(one) if start_is_open(one) else one for one in experiments]


def copy_weights(store: Store, experiments: Iterable[Experiment]) -> None:
    """Copy the weights of runs from which experiments start into the store, where they are not there yet.

    Raises:
        UserError: the run has other weights by now.
    """
    starts = {getattr(experiment, "init", None) for experiment in experiments}
    for init in starts:
        if not isinstance(init, PlannedWeights) or init.of_run is None or Path(str(init.file)).exists():
            continue
        data, path = _weights(store, init.of_run), Path(str(init.file))
        if hashlib.sha256(data).hexdigest() != init.content:
            raise UserError(f"init: {init.label()}: run {init.of_run} has other weights by now; plan again")
        files.make_directory(path.parent, store.root)
        files.replace(path, data)


def check_starts(experiments: Iterable[Experiment]) -> None:
    """Try the weights of each start in the networks of the experiments, as far as the data set's class has its sizes.

    Raises:
        UserError: the weights cannot be read, or do not fit a network.
    """
    tried = set()
    for one in cast(Iterable[Any], experiments):
        init = getattr(one, "init", None)
        if not isinstance(init, StoredWeights) or one.dataset.image is None:
            continue
        network = one.model, one.dataset.image, one.dataset.classes or 2, one.norm, one.bias
        if (init.content, *network, one.head) not in tried:
            from flbench.models.initial_weights import build  # imports torch
            from flbench.models.weight_files import start_from

            tried.add((init.content, *network, one.head))
            start_from(build(*network, seed=0, head=one.head), init, one.model)


def _weights(store: Store, run_id: str) -> bytes:
    from flbench.models.weight_files import safetensors  # imports torch
    from flbench.trained import shared_weights

    return safetensors(shared_weights(store.run(run_id)))


class _Finder:
    """Finds weights, each once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._store = Store(root, create=False) if Store.exists(root) else None
        self._of_run: dict[str, tuple[str, str]] = {}
        self._runs: dict[str, Sequence[Experiment]] = {}

    def found(self, experiment: Any) -> Experiment:
        init: PlannedWeights = experiment.init
        found = init
        try:
            match init:
                case TorchvisionWeights():
                    path = experiment.model.weights_at(init.weights)
                    found = replace(init, content=sha256(path, "the weights"), file=str(path))
                case PackageWeights():
                    path = experiment.model.package_weights()
                    found = replace(init, content=sha256(path, "the weights"), file=str(path))
                case RunWeights():
                    found = self._trained_in(self._run_id(init.run), init)
                case SweepWeights():
                    found = self._trained_in(self._matching(init, experiment), init)
        except UserError as error:
            raise type(error)(f"init: {init.label()}: {error}") from None
        return cast(Experiment, experiment.having(init=found))

    def _run_id(self, digits: str) -> str:
        found = self._store.id_beginning_with(digits) if self._store else None
        if found is None:
            raise DataMissing(f"there is no run {digits} in {self._root}")
        return found

    def _trained_in(self, run_id: str, init: PlannedWeights) -> PlannedWeights:
        assert self._store is not None
        if run_id not in self._of_run:
            content = hashlib.sha256(_weights(self._store, run_id)).hexdigest()
            self._of_run[run_id] = content, str(self._root.absolute() / "weights" / f"{content}.safetensors")
        content, file = self._of_run[run_id]
        return replace(init, content=content, file=file, of_run=run_id)

    def _matching(self, init: SweepWeights, experiment: Experiment) -> str:
        """Return the run of the sweep with the same values in the fields that must match."""
        alike = [one for one in self._runs_of(init.sweep) if _value(one, init.match) == _value(experiment, init.match)]
        same_seed = [one for one in alike if one.seed == experiment.seed]
        chosen = same_seed if len(alike) > 1 and len(same_seed) == 1 else alike
        told = ", ".join(f"{name}: {label(getattr(experiment, name, None))}" for name in init.match)
        if not chosen:
            raise UserError(f"no run of the sweep has {told}")
        if len(chosen) > 1:
            fields = (name for name in type(chosen[0]).model_fields if name not in init.match)
            differ = [name for name in fields if len({str(_value(one, (name,))) for one in chosen}) > 1]
            raise UserError(
                f"{counted(len(chosen), 'run')} of the sweep have {told}; they differ in {', '.join(differ)}: add "
                "fields to match until one is left"
            )
        (one,) = chosen
        if self._store is None or not self._store.run(one.run_id).result_for(one):
            raise DataMissing(f"its run {one.run_id} ({told}) is not finished; run flbench sweep {init.sweep} first")
        return one.run_id

    def _runs_of(self, sweep: str) -> Sequence[Experiment]:
        if sweep not in self._runs:
            runs: Sequence[Experiment] = load_sweep(find_file(sweep)).experiments
            self._runs[sweep] = named_by(StoreSource(self._store), runs) if self._store else runs
        return self._runs[sweep]


def _value(experiment: Experiment, names: Iterable[str]) -> list[Any]:
    return [experiment.identity_of(name, getattr(experiment, name, None)) for name in names]
