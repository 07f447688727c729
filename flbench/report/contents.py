"""The content that a data set in an experiment stands for, where the experiment does not name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flbench.config import Experiment
from flbench.data.datasets import Dataset, load
from flbench.errors import UserError
from flbench.messages import counted


def renamed(experiments: Sequence[Experiment], named: dict[Dataset, Dataset]) -> list[Experiment]:
    """Return the experiments with their data sets replaced as in ``named``."""
    out = []
    for experiment in experiments:
        dataset = getattr(experiment, "dataset", None)
        new = named.get(dataset, dataset) if dataset is not None else None
        out.append(experiment if new is None or new == dataset else experiment.having(dataset=new))
    return out


def by_dataset(experiments: Sequence[Experiment]) -> dict[Dataset, list[Experiment]]:
    """Return the experiments by their data set; studies without one are omitted."""
    found: dict[Dataset, list[Experiment]] = {}
    for experiment in experiments:
        if (dataset := getattr(experiment, "dataset", None)) is not None:
            found.setdefault(dataset, []).append(experiment)
    return found


def choose_content(dataset: Dataset, contents: Counter[str]) -> str | None:
    """Return the only one of the contents, or the one on this machine; None without any.

    Raises:
        UserError: there are several contents, none of which is on this machine.
    """
    if len(contents) <= 1:
        return next(iter(contents), None)
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
