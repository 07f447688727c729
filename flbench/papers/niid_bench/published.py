"""NIID-Bench's label skew on MNIST and Fashion-MNIST as published, and which experiments the numbers belong to.

``published.csv`` beside this file holds the test accuracies in percent of the reproduction in Flower's
``baselines/niid_bench`` (its README): the best round of 50, mean and standard deviation of 3 seeds. Its code (commit
5252f67577) differs from what one may expect:

- Its seed only names the run: all partitions are drawn with seed 42, and weights and batches without a seed. So its
  three seeds share a partition; ours have three.
- A model that diverged predicts class 0, which counts as 10 % (9.8 % on MNIST).
- SCAFFOLD adds its correction after momentum (``variant: flower``).
- FedNova weighs clients by samples. So does the code of NIID-Bench, which computes shares of classes and never uses
  them.
- FedProx is tuned over mu, by the test accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from flbench.config import Federated, Training, parse_experiment
from flbench.papers.published_numbers import PublishedNumber, published_lines

#: The settings of all numbers, in flbench's names.
SETTINGS: Mapping[str, Any] = {
    "model": "lenet",
    "norm": "none",
    "bias": True,
    "clients": 10,
    "rounds": 50,
    "local_epochs": 10,
    "drop_last": False,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "eval_every": 1,
}

#: The settings of each partition, by its name in ``published.csv``.
PARTITIONS: Mapping[str, Mapping[str, Any]] = {
    "Dir(0.5)": {"partition": {"name": "dirichlet", "beta": 0.5, "variant": "niid-bench"}, "min_size": 10},
    "1 class": {"partition": {"name": "classes", "n": 1, "variant": "niid-bench"}},
    "2 classes": {"partition": {"name": "classes", "n": 2, "variant": "niid-bench"}},
    "3 classes": {"partition": {"name": "classes", "n": 3, "variant": "niid-bench"}},
}

#: The values of mu among which FedProx was tuned.
MUS = (0.001, 0.01, 0.1, 1.0)

#: Fields of a method that may differ from their defaults: those that choose between sources, or that were tuned.
FREE: Mapping[str, frozenset[str]] = {"scaffold": frozenset({"variant"}), "fedprox": frozenset({"mu"})}

_SEEDS = 3


class Configuration(NamedTuple):
    """What differs between the numbers; ``partition`` is a name in ``PARTITIONS``."""

    dataset: str
    partition: str
    method: str

    @property
    def place(self) -> tuple[str, str]:
        """Data set and model."""
        return self.dataset, SETTINGS["model"]

    @property
    def partition_is_drawn(self) -> bool:
        """Whether partitions differ in more than which rows of a class a client holds."""
        return self.partition != "1 class"


@dataclass(frozen=True)
class PublishedRow(PublishedNumber):
    """One number of the reproduction's tables."""

    configuration: Configuration

    @property
    def source(self) -> str:
        """The reproduction."""
        return "Flower's baselines/niid_bench"


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return every published number."""
    return tuple(
        PublishedRow.of_line(
            line,
            seeds=_SEEDS,
            rounds=SETTINGS["rounds"],
            configuration=Configuration(line["dataset"], line["partition"], line["method"]),
        )
        for line in published_lines(__file__)
    )


def configuration_of(experiment: Training) -> Configuration | None:
    """Return the published configuration that an experiment may be, or None where some setting is not NIID-Bench's.

    Seeds, rounds, evaluations and the precision are free, and of methods ``variant`` and FedProx's mu.
    """
    if not isinstance(experiment, Federated) or experiment.model.label() != SETTINGS["model"]:
        return None
    method, dataset = experiment.method, experiment.dataset.name
    if method.settings().keys() - FREE.get(method.name, frozenset()):
        return None
    known = {row.configuration for row in published_rows()}
    candidates = (Configuration(dataset, partition, method.name) for partition in PARTITIONS)
    return next((one for one in candidates if one in known and _same(experiment, one)), None)


def _same(experiment: Federated, configuration: Configuration) -> bool:
    """Whether an experiment has the settings of a configuration, whatever its method is."""
    wanted = _reference(configuration.dataset, configuration.partition)
    free = {"method": wanted.method, "dataset": wanted.dataset, "seed": wanted.seed, "precision": wanted.precision}
    return experiment.model_copy(update=free).identity() == wanted.identity()


@cache
def _reference(dataset: str, partition: str) -> Federated:
    found = parse_experiment({**SETTINGS, **PARTITIONS[partition], "dataset": dataset, "method": "fedavg"})
    assert isinstance(found, Federated)
    return found
