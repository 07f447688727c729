"""Which content of a data set an experiment stands for, decided by the runs of a source without reading the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.config import Experiment
from flbench.data.datasets import Dataset, load
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.report.sources import Source


def named_by(source: Source, requests: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments on the content of their data that the runs of ``source`` have.

    A data set that names its content keeps it. The official content comes first where there are runs on it; other
    content is used where it is the only one, or the one on this machine.

    Raises:
        UserError: the runs are on several contents, none of which is on this machine.
    """
    stored: list[tuple[Experiment, Dataset]] | None = None
    named: dict[Dataset, Dataset] = {}
    for dataset, experiments in by_dataset(requests).items():
        if dataset.content is not None:
            continue
        if dataset.official and any(source.results(experiment.run_id) for experiment in experiments):
            continue
        stored = _with_named_content(source) if stored is None else stored
        ids = {experiment.run_id for experiment in experiments}
        contents = Counter(
            own.content
            for experiment, own in stored
            if own.content and own.same_place(dataset) and experiment.on(dataset).run_id in ids
        )
        named[dataset] = dataset.holding(_choose(dataset, contents))
    return renamed(requests, named)


def renamed(experiments: Sequence[Experiment], named: dict[Dataset, Dataset]) -> list[Experiment]:
    """Return the experiments with their data sets replaced as in ``named``."""
    out = []
    for experiment in experiments:
        dataset = getattr(experiment, "dataset", None)
        new = named.get(dataset, dataset) if dataset is not None else None
        out.append(experiment if new is None or new == dataset else experiment.on(new))
    return out


def by_dataset(experiments: Sequence[Experiment]) -> dict[Dataset, list[Experiment]]:
    """Return the experiments by their data set; studies without one are omitted."""
    found: dict[Dataset, list[Experiment]] = {}
    for experiment in experiments:
        if (dataset := getattr(experiment, "dataset", None)) is not None:
            found.setdefault(dataset, []).append(experiment)
    return found


def _with_named_content(source: Source) -> list[tuple[Experiment, Dataset]]:
    """Return the stored experiments whose data set names its content."""
    experiments = (stored.experiment for stored in source.stored_runs())
    found = ((one, getattr(one, "dataset", None)) for one in experiments if one is not None)
    return [(one, dataset) for one, dataset in found if dataset is not None and dataset.content is not None]


def _choose(dataset: Dataset, contents: Counter[str]) -> str | None:
    if len(contents) <= 1:
        return next(iter(contents), None)
    try:
        here = load(dataset).fingerprint
    except UserError:
        here = ""
    if here in contents:
        return here
    known = ", ".join(f"{content} ({count} runs)" for content, count in contents.most_common())
    raise UserError(
        f"the data set {dataset.label()} stands for several contents in the runs that are there: {known}. Name one: "
        "--set dataset.content=FINGERPRINT, or dataset: {name: ..., content: ...} in the sweep"
    )
