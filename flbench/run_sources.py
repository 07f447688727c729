"""Where runs come from: a store, or exported files (``flbench.exchange``); and which of them requested runs stand for.

A run's id depends on the content of its data. An experiment that names none stands for the run on the official content,
or on the content that the source has runs on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from flbench.config import Experiment, InvalidExperiment, Training
from flbench.errors import UserError
from flbench.messages import counted
from flbench.plugin_files import CURE
from flbench.registry import Component
from flbench.store import Result, Store

if TYPE_CHECKING:
    from flbench.data.datasets import Dataset

#: What is said of a run whose id is no longer that of its experiment.
RETIRED = "of an earlier version of a component, whose numbers are retired"

#: What is left out (``run``, ``planned run``), and why.
Reason = tuple[str, str]


@dataclass(frozen=True)
class StoredRun:
    """A run of a source, under the id that it was stored with; without its experiment where that cannot be read."""

    run_id: str
    experiment: Experiment | None
    problem: str = ""  # why it cannot be read, and the cure; `flbench verify` reports the details
    unknown: str = ""  # the component that is not known here, if that is why

    @classmethod
    def read(cls, run_id: str, read: Callable[[], Experiment]) -> StoredRun:
        """Return a run with the experiment that ``read`` returns, or with the problem that it raises."""
        try:
            return cls(run_id, read())
        except InvalidExperiment as error:
            if error.unknown:
                return cls(run_id, None, f"with the unknown {error.unknown}{CURE}", error.unknown)
        except (OSError, UserError):
            pass
        return cls(run_id, None, "whose experiment this version of flbench cannot read; flbench verify says why")


def readable(stored_runs: Iterable[StoredRun], reasons: Counter[Reason], what: str = "run") -> list[Experiment]:
    """Return every experiment whose stored id is still its run id; count why the others, each a ``what``, are not."""
    kept = []
    for stored in stored_runs:
        if stored.experiment is None:
            reasons[what, stored.problem] += 1
        elif stored.experiment.run_id != stored.run_id:
            reasons[what, RETIRED] += 1
        else:
            kept.append(stored.experiment)
    return kept


def notes_of(reasons: Counter[Reason]) -> tuple[str, ...]:
    """Return what is said of the runs that are left out: ``2 runs with the unknown norm 'lm'; ...``."""
    return tuple(f"{counted(count, what)} {why}" for (what, why), count in reasons.items())


class Source(Protocol):
    """Where runs come from: a store, or exported files."""

    def stored_runs(self) -> Iterator[StoredRun]:
        """Yield every run."""

    def results(self, run_id: str) -> Sequence[Result]:
        """Return the published results of a run; empty for an unknown run."""

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """Return all records of one result, in the order of rounds."""

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """Return the state of an unfinished run, and the kind of failure of a failed one."""


class StoreSource:
    """The runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: dict[str, Sequence[Result]] = {}

    def stored_runs(self) -> Iterator[StoredRun]:
        """Yield every run that was ever started."""
        for run_id in self._store.run_ids():
            yield StoredRun.read(run_id, self._store.run(run_id).experiment)

    def results(self, run_id: str) -> Sequence[Result]:
        """Return the results of a run, read once; empty where one is unreadable, which ``state`` reports."""
        if run_id not in self._results:
            try:
                self._results[run_id] = self._store.run(run_id).results()
            except OSError:
                self._results[run_id] = ()
        return self._results[run_id]

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        """Return the verified records of a result; empty where they are unreadable."""
        try:
            return self._store.run(run_id).metrics(result)
        except OSError:
            return []

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        """Return the state of an unfinished run; one that finished after its results were read is still ``running``."""
        state = self._store.run(experiment.run_id).state(experiment)
        if state.status == "done":
            return "running", None
        return state.status, state.kind if state.status == "failed" else None


def by_dataset(experiments: Iterable[Experiment]) -> dict[Dataset, list[Experiment]]:
    """Return the experiments by their data set; studies without one are omitted."""
    found: dict[Dataset, list[Experiment]] = {}
    for experiment in experiments:
        if (dataset := getattr(experiment, "dataset", None)) is not None:
            found.setdefault(dataset, []).append(experiment)
    return found


def renamed(experiments: Iterable[Experiment], named: Mapping[Dataset, Dataset]) -> list[Experiment]:
    """Return the experiments with their data sets replaced as in ``named``."""
    out = []
    for experiment in experiments:
        dataset = getattr(experiment, "dataset", None)
        new = named.get(dataset, dataset) if dataset is not None else None
        out.append(experiment if new is None or new == dataset else experiment.having(dataset=new))
    return out


def named_by(source: Source, requests: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments on the content of their data that the runs of ``source`` have.

    A data set that names its content keeps it. The official content comes first where there are runs on it; other
    content is used where it is the only one, or the one on this machine.

    Raises:
        UserError: the runs are on several contents, none of which is on this machine.
    """
    stored: dict[Dataset, list[Experiment]] | None = None
    named: dict[Dataset, Dataset] = {}
    for dataset, experiments in by_dataset(requests).items():
        if dataset.content is not None:
            continue
        if dataset.official and any(source.results(experiment.run_id) for experiment in experiments):
            continue
        if stored is None:
            stored = by_dataset(run.experiment for run in source.stored_runs() if run.experiment)
        ids = {experiment.run_id for experiment in experiments}
        contents = Counter(
            own.content
            for own, on_it in stored.items()
            if own.content and own.same_place(dataset)
            for experiment in on_it
            if _as_given(experiment.having(dataset=dataset)).run_id in ids
        )
        named[dataset] = dataset.holding(_choose_content(dataset, contents))
    return with_stored_starts(source, renamed(requests, named))


def with_stored_starts(source: Source, requests: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments with the weights from which the runs of ``source`` started, where they name none yet.

    Raises:
        UserError: runs of the same experiment have started from several.
    """
    if not any(start_is_open(one) for one in requests):
        return list(requests)
    return with_starts_of((run.experiment for run in source.stored_runs() if run.experiment), requests)


def with_starts_of(planned: Iterable[Experiment], requests: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments with the weights that equal planned ones start from, where they name none yet.

    Raises:
        UserError: equal ones start from several.
    """
    known: dict[str, dict[str, Component]] = {}
    for experiment in planned:
        if (given := _as_given(experiment)) is not experiment:
            init = cast(Any, experiment).init
            known.setdefault(given.run_id, {})[init.content] = init
    out = []
    for experiment in requests:
        found = known.get(experiment.run_id, {}) if start_is_open(experiment) else {}
        if len(found) > 1:
            raise UserError(
                f"init: {cast(Any, experiment).init.label()} stands for several weights in the runs that are there: "
                f"{', '.join(sorted(found))}; name one: --set init.content=SHA256"
            )
        out.append(experiment.having(init=next(iter(found.values()))) if found else experiment)
    return out


def _as_given(experiment: Experiment) -> Experiment:
    """Return the experiment without the weights that planning has found."""
    init = _start_of(experiment)
    return experiment if init is None or init.as_given() == init else experiment.having(init=init.as_given())


def start_is_open(experiment: Experiment) -> bool:
    """Return whether an experiment names weights to start from that planning still has to find."""
    init = _start_of(experiment)
    return init is not None and bool(init.is_open)


def _start_of(experiment: Experiment) -> Any:
    """Where training starts; None for studies, whose field ``init`` is another."""
    return getattr(experiment, "init", None) if isinstance(experiment, Training) else None


def _choose_content(dataset: Dataset, contents: Counter[str]) -> str | None:
    """Return the only one of the contents, or the one on this machine; None without any; raises UserError otherwise."""
    if len(contents) <= 1:
        return next(iter(contents), None)
    from flbench.data.datasets import load  # imports numpy, which the help of commands does not need

    try:
        here = load(dataset).fingerprint
    except UserError:
        here = ""
    if here in contents:
        return here
    known = ", ".join(f"{content} ({counted(count, 'run')})" for content, count in contents.most_common())
    raise UserError(
        f"the data set {dataset.label()} stands for several contents in the runs that are there: {known}. Name one: "
        "--set dataset.content=FINGERPRINT, or dataset: {name: ..., content: ...} in the sweep"
    )
