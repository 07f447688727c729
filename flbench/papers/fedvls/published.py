"""FedVLS's numbers on MNIST as published, and which experiments they belong to.

``published.csv`` beside this file holds the accuracies in percent of the paper's table 1: the best round of 50, mean
and (where it was copied) standard deviation of 3 seeds. The published code (commit 7d8163f441) differs from what one
may expect:

- ``generate_mnist`` returns the clients' data, the test set and the training set; ``main.py`` takes them for the
  clients' data, the training set and the test set. So its accuracies on MNIST are those on the training set.
- Training and test set are joined and split again, 75/25, before the training set is divided.
- Local optimizers live as long as their clients, so momentum is kept over rounds. FedVLS itself starts anew.
- FedAvg's server reads two attributes that nothing sets, and FedSAM an option that does not exist.
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
    "dataset": {"name": "mnist", "test_fraction": 0.25, "mean": [0.5], "std": [0.5]},
    "model": {"name": "mlp", "widths": [200, 200]},
    "norm": "none",
    "bias": True,
    "clients": 10,
    "min_size": 256,
    "rounds": 50,
    "local_epochs": 5,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.9,
    "keep_momentum": True,
    "weight_decay": 1e-5,
    "eval_every": 1,
}

#: The settings of each partition, by its name in ``published.csv``.
PARTITIONS: Mapping[str, Mapping[str, Any]] = {
    f"Dir({beta:g})": {"partition": {"name": "dirichlet", "beta": beta, "variant": "niid-bench"}}
    for beta in (0.5, 0.1, 0.05)
}

#: The settings of each method: the paper's appendix, table 10; MOON's head and FedSAM's clipping are its code's.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedprox": {"method": {"name": "fedprox", "mu": 0.01}},
    "moon": {
        "method": {"name": "moon", "mu": 0.01, "tau": 0.5},
        "head": {"name": "projection", "hidden": 100, "out": 256},
    },
    "fedexp": {"method": {"name": "fedexp", "eps": 0.01}},
    "fedlc": {"method": {"name": "fedlc", "tau": 0.5}},
    "fedrs": {"method": {"name": "fedrs", "alpha": 0.7}},
    "fedsam": {"method": {"name": "fedsam", "rho": 0.1}, "clip_norm": 5},
    "fedntd": {"method": {"name": "fedntd", "beta": 0.1}},
}

#: The fingerprint of the official images split again.
CONTENT = "4310748cd87cc92f"

#: What a number may be the accuracy on: the paper says the test set, and its code takes the training set.
READINGS = ("the test set", "the training set")

_SEEDS = 3


class Configuration(NamedTuple):
    """What differs between the numbers; ``partition`` is a name in ``PARTITIONS``."""

    dataset: str
    partition: str
    method: str

    @property
    def place(self) -> tuple[str, str]:
        """Data set and model."""
        return self.dataset, SETTINGS["model"]["name"]


@dataclass(frozen=True)
class PublishedRow(PublishedNumber):
    """One number of table 1, read as the accuracy ``on`` a set, one of ``READINGS``."""

    configuration: Configuration
    on: str

    @property
    def source(self) -> str:
        """The table."""
        return "FedVLS, table 1"


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return every published number, once for each reading."""
    return tuple(
        PublishedRow.of_line(
            line,
            seeds=_SEEDS,
            rounds=SETTINGS["rounds"],
            configuration=Configuration(line["dataset"], line["partition"], line["method"]),
            on=on,
        )
        for line in published_lines(__file__)
        for on in READINGS
    )


def configuration_of(experiment: Training) -> Configuration | None:
    """Return the published configuration that an experiment is, or None; seeds, lengths and evaluations are free."""
    if not isinstance(experiment, Federated):
        return None
    method: Any = experiment.method
    if method.name not in METHODS:
        return None
    candidates = (Configuration("mnist", partition, method.name) for partition in PARTITIONS)
    return next((one for one in candidates if _same(experiment, one)), None)


def _same(experiment: Federated, configuration: Configuration) -> bool:
    """Whether an experiment has the settings of a configuration, whatever the content of its data is."""
    wanted, given, known = _reference(configuration), _dataset(experiment), _dataset(_reference(configuration))
    if given.holding(None) != known:
        return False
    free = {"dataset": known, "seed": wanted.seed, "precision": wanted.precision}
    return experiment.model_copy(update=free).identity() == wanted.identity()


def _dataset(experiment: Federated) -> Any:
    return experiment.dataset


@cache
def _reference(configuration: Configuration) -> Federated:
    found = parse_experiment({**SETTINGS, **PARTITIONS[configuration.partition], **METHODS[configuration.method]})
    assert isinstance(found, Federated)
    return found
