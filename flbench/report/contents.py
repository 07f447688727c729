"""Which content of a data set is meant where the data are not read: told by the runs that a source holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from flbench.config import Experiment
from flbench.data.datasets import Dataset, load
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.sources import Source


def named_by(source: Source, requests: Sequence[Experiment]) -> list[Experiment]:
    """The experiments on the content of their data that the runs of ``source`` are on.

    A data set that names its content keeps it. The official content comes first where there are runs on it; other
    content is taken where it is the only one, or the one that is on this machine.

    Raises:
        UserError: the runs are on several contents, and none of them is here.
    """
    stored = _Stored(source)
    named: dict[Dataset, Dataset] = {}
    for dataset, experiments in by_dataset(requests).items():
        if dataset.content is None and not (dataset.official and stored.any_of(experiments)):
            named[dataset] = dataset.holding(_choose(dataset, stored.contents(dataset, experiments)))
    return renamed(requests, named)


def renamed(experiments: Sequence[Experiment], named: dict[Dataset, Dataset]) -> list[Experiment]:
    """The experiments with their data sets replaced where ``named`` says so."""
    out = []
    for experiment in experiments:
        dataset = getattr(experiment, "dataset", None)
        new = named.get(dataset, dataset) if dataset is not None else None
        out.append(experiment if new is None or new == dataset else experiment.on(new))
    return out


def by_dataset(experiments: Sequence[Experiment]) -> dict[Dataset, list[Experiment]]:
    """The experiments that are on a data set, by data set."""
    found: dict[Dataset, list[Experiment]] = {}
    for experiment in experiments:
        if (dataset := getattr(experiment, "dataset", None)) is not None:
            found.setdefault(dataset, []).append(experiment)
    return found


class _Stored:
    """The runs of a source, by their data."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def any_of(self, experiments: Sequence[Experiment]) -> bool:
        """Whether there is a result of any of them under its own id."""
        return any(self._source.results(experiment.run_id) for experiment in experiments)

    def contents(self, dataset: Dataset, experiments: Sequence[Experiment]) -> Counter[str]:
        """How many of the experiments are there on each named content of a data set."""
        ids = {experiment.run_id for experiment in experiments}
        return Counter(
            own.content
            for experiment, own in self._named
            if own.content and own.same_place(dataset) and experiment.on(dataset).run_id in ids
        )

    @cached_property
    def _named(self) -> list[tuple[Experiment, Dataset]]:
        return list(self._find())

    def _find(self) -> Iterator[tuple[Experiment, Dataset]]:
        for stored in self._source.stored_runs():
            dataset = getattr(stored.experiment, "dataset", None)
            if stored.experiment is not None and dataset is not None and dataset.content is not None:
                yield stored.experiment, dataset


def _choose(dataset: Dataset, stored: Counter[str]) -> str | None:
    if len(stored) <= 1:
        return next(iter(stored), None)
    try:
        here = load(dataset).fingerprint
    except UserError:
        here = ""
    if here in stored:
        return here
    known = ", ".join(f"{content} ({count} runs)" for content, count in stored.most_common())
    raise UserError(
        f"the data set {dataset.label()} stands for several contents in the runs that are there: {known}. Name one: "
        "--set dataset.content=FINGERPRINT, or dataset: {name: ..., content: ...} in the sweep"
    )
