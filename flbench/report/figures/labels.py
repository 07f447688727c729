"""How many samples of each class each client holds: figures 8 and 9 of Zhang et al. 2024 (arXiv 2308.09565v2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flbench.config import Federated
from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.figures.drawing import Drawing, file_name
from flbench.report.figures.label_counts import figure_of
from flbench.report.ticks import public


def labels(board: Leaderboard, root: Path | None = None) -> Iterator[Drawing]:
    """Yield one figure per partition, of its first seed; partitions of data that are not on this machine are omitted.

    Args:
        board: the leaderboard.
        root: folder of the data sets; None: the usual one.
    """
    from flbench.data.datasets import load_named
    from flbench.data.label_counts import count_labels
    from flbench.data.shards import shards_of

    for experiment in _partitions(board):
        dataset: Any = experiment.dataset
        try:
            data = load_named(dataset, root)
            counts = count_labels(data, shards_of(experiment, data))
        except UserError:  # the data are not here, or cannot be split like this: the runs report why
            continue
        what = f"{public(dataset.label())}, {experiment.partition.label()}, {experiment.clients} clients"
        caption = f"{what}: training samples of each class that each client holds, seed {experiment.seed}."
        place = (dataset.name, experiment.model.name)
        picture = figure_of(counts, f"{what}, seed {experiment.seed}")
        yield Drawing(file_name("labels", what), caption, picture, place, tight=True)


def _partitions(board: Leaderboard) -> list[Federated]:
    """Return one experiment for each way in which data are split, with the first seed."""
    found: dict[tuple[Any, ...], Federated] = {}
    for run in sorted(board.collection.runs, key=lambda run: run.experiment.seed):
        one = run.experiment
        if isinstance(one, Federated):
            key = (one.dataset.label(), one.partition.label(), one.clients, one.min_size, one.val_fraction)
            found.setdefault(key, one)
    return [found[key] for key in sorted(found)]
