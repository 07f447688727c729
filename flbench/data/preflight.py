"""Check that experiments fit their data, before the first run starts.

``config`` checks the fields of an experiment. If only the files define the shape of the images, the classes, the
domains or the number of samples, the same checks are repeated here with these. Other checks need the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from flbench.config import Centralized, Experiment, Federated
from flbench.config.base import Check
from flbench.data.arrays import Data
from flbench.data.datasets import Dataset
from flbench.data.shards import client_sizes
from flbench.errors import UserError
from flbench.registry import Component

#: Classes that a message names; further ones are counted.
_MOST_NAMES = 10

#: A check, which raises UserError, and its key: experiments with the same key pass it or fail it together.
_Keyed = tuple[Hashable, Callable[[], None]]


@dataclass(frozen=True)
class _DatasetAsRead:
    """A data set as ``config``'s checks see it, with what its files define."""

    dataset: Dataset
    image: tuple[int, ...]
    classes: int
    domains: tuple[str, ...]
    counts: tuple[int, int]

    @classmethod
    def of(cls, dataset: Dataset, data: Data) -> Self:
        return cls(
            dataset, data.shape, data.classes, data.domain_names, (len(data.train.labels), len(data.test.labels))
        )

    @property
    def is_known(self) -> bool:
        """Whether the files hold what the data set's class declares, which ``config`` has checked."""
        declared = self.dataset.image, self.dataset.classes, self.dataset.domains, self.dataset.counts
        return declared == (self.image, self.classes, self.domains, self.counts)

    def label(self) -> str:
        return self.dataset.label()


def misfits(experiments: Iterable[Experiment], dataset: Dataset, data: Data) -> Iterator[tuple[Experiment, UserError]]:
    """Yield the experiments on a data set that cannot run on it, each with its first problem.

    Args:
        experiments: on ``dataset``; what many share is checked once.
        dataset: the data set that they name.
        data: what its files hold.
    """
    as_read = _DatasetAsRead.of(dataset, data)
    found: dict[Hashable, UserError | None] = {}
    for experiment in experiments:
        for key, check in _checks(experiment, as_read, data):
            if key not in found:
                found[key] = None
                try:
                    check()
                except UserError as error:
                    found[key] = error
            if (problem := found[key]) is not None:
                yield experiment, problem
                break


def require_fit(experiment: Experiment, data: Data) -> None:
    """Raise UserError if a field of an experiment, such as the model, does not fit the data as they were read."""
    as_read = _DatasetAsRead.of(cast(Any, experiment).dataset, data)
    for _, check in _checks_of_fields(experiment, as_read):
        check()


def require_batches(experiment: Federated, sizes: Iterable[int]) -> None:
    """Raise UserError if the last batch of a client of these sizes is smaller than the norm or the method needs."""
    if experiment.drop_last:
        return
    found = smallest_batch(sizes, experiment.batch_size)
    for component in cast(Any, (experiment.norm, experiment.method)):
        if found < (needed := component.smallest_batch):
            raise UserError(
                f"drop_last: {component.label()} needs at least {needed} samples in a batch, and the last batch of a "
                f"client has {found}; use drop_last: true or another batch_size than {experiment.batch_size}"
            )


def require_classes(dataset: Dataset, data: Data) -> None:
    """Raise UserError if a class lacks images in train or test: a model would have an unused output for it."""
    if data.fingerprint == dataset.official:
        return
    train_C, test_C = (np.bincount(half.labels, minlength=data.classes) > 0 for half in (data.train, data.test))
    absent_C = ~train_C & ~test_C
    problems, remedies = [], []
    if absent_C.any():
        problems.append(f"no images of {_named(absent_C, data)} (labels count from 0 to {data.classes - 1})")
        remedies.append("To leave such classes out: {name: folder or arrays, path: ..., labels: renumber}")
    if (untested_C := train_C & ~test_C).any():
        problems.append(f"training images and no test images of {_named(untested_C, data)}")
    if (untrained_C := test_C & ~train_C).any():
        problems.append(f"test images and no training images of {_named(untrained_C, data)}")
    if untested_C.any() or untrained_C.any():
        remedies.append("Add the images that a class lacks, or remove its others")
    if problems:
        raise UserError(f"{dataset.label()} has {'; '.join(problems)}. {'. '.join(remedies)}")


def _named(chosen_C: NDArray[np.bool_], data: Data) -> str:
    """Return ``class dog``, or ``2 of 8 classes: cat, dog``."""
    names = [data.class_names[number] for number in np.flatnonzero(chosen_C)]
    if len(names) == 1:
        return f"class {names[0]}"
    more = len(names) - _MOST_NAMES
    listed = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} of {data.classes} classes: {listed}"


def _checks(experiment: Experiment, as_read: _DatasetAsRead, data: Data) -> Iterator[_Keyed]:
    yield "classes", partial(require_classes, as_read.dataset, data)
    yield from _checks_of_fields(experiment, as_read)
    match experiment:
        case Federated():
            fields = ["partition", "clients", "min_size", "val_fraction", "server_fraction", "seed"]
            fields += [] if experiment.drop_last else ["batch_size", "norm", "method"]
            yield (
                tuple(_key(getattr(experiment, field)) for field in fields),
                partial(_require_shards, experiment, data),
            )
        case Centralized():
            yield experiment.val_fraction, partial(_require_training_samples, experiment, len(data.train.labels))


def _checks_of_fields(experiment: Experiment, as_read: _DatasetAsRead) -> Iterator[_Keyed]:
    for check in type(experiment).checks if not as_read.is_known else ():
        if "dataset" in check.fields:
            values = {field: getattr(experiment, field) for field in check.fields}
            yield (check, *map(_key, values.values())), partial(_repeat, check, {**values, "dataset": as_read})


def _key(value: Any) -> Hashable:
    """Return a component's identity: the experiments of a sweep share components, which need not be hashable."""
    return id(value) if isinstance(value, Component) else value


def _repeat(check: Check, values: dict[str, Any]) -> None:
    if found := check.find(*values.values()):
        raise UserError(f"{check.blamed}: {found}")


def _require_shards(experiment: Federated, data: Data) -> None:
    """Raise UserError if the data cannot be divided so, or leave a client with too small a batch."""
    try:
        require_batches(experiment, client_sizes(experiment, data).tolist())
    except UserError as error:
        raise type(error)(f"{experiment.dataset.label()}: {error}") from error


def _require_training_samples(experiment: Centralized, samples: int) -> None:
    if experiment.held_out(samples) == samples:
        raise UserError(
            f"val_fraction: {experiment.val_fraction} of the {samples} training samples of "
            f"{experiment.dataset.label()} leaves none to train on"
        )


def smallest_batch(sizes: Iterable[int], batch_size: int) -> int:
    """Return the smallest batch of an epoch of clients with these numbers of samples, partial batches included.

    >>> smallest_batch([64, 70], 32), smallest_batch([64, 96], 32)
    (6, 32)
    """
    return min((size - 1) % batch_size + 1 for size in sizes)
