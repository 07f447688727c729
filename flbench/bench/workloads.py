"""The workloads of a measurement: experiments and their data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.datasets import Dataset, load
from flbench.errors import DataMissing


@dataclass(frozen=True)
class Workload:
    """A kind of training that is measured.

    Attributes:
        name: its name on the command line.
        what: a description for the user.
        fields: fields of the experiment; the partition is iid, because it does not change the cost.
        rounds: rounds in one turn on a CPU, enough for a turn to be measurable; ``gpu_rounds``: on a GPU.
        gpu_fields: fields that differ on a GPU, where more clients and steps are affordable.
    """

    name: str
    what: str
    fields: Mapping[str, Any]
    rounds: int
    gpu_rounds: int = 20
    gpu_fields: Mapping[str, Any] = field(default_factory=dict)

    def experiment(self, device: str = "cpu", **changes: Any) -> Federated:
        """The experiment on a device, with changes to some fields."""
        own = {**self.fields, **(self.gpu_fields if device == "cuda" else {})}
        return cast(Federated, parse_experiment({"partition": "iid", **own, **changes}))

    def turn(self, device: str) -> int:
        """Rounds in one turn on a device."""
        return self.gpu_rounds if device == "cuda" else self.rounds


_WORKLOADS = (
    Workload("digits", "digits, MLP 64-128-10", {"model": {"name": "mlp", "widths": [128]}}, rounds=20),
    Workload("mlp", "digits, the default MLP", {}, rounds=20),
    Workload(
        "lenet",
        "Fashion-MNIST, LeNet",
        {
            "dataset": "fashion_mnist",
            "model": "lenet",
            "bias": True,
            "batch_size": 64,
            "momentum": 0.9,
            "weight_decay": 1e-5,
        },
        rounds=2,
    ),
    Workload("cifar10", "CIFAR-10, CNN", {"dataset": "cifar10", "model": "cnn"}, rounds=1),
    Workload(
        "resnet18",
        "CIFAR-10, ResNet-18",
        {"dataset": "cifar10", "model": "resnet18", "clients": 4, "local_steps": 1},
        rounds=1,
        gpu_rounds=3,
        gpu_fields={"clients": 10, "local_steps": 10},
    ),
)

#: Every workload by its name. ResNet-18 has few clients and steps on a CPU, where a round takes seconds.
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _WORKLOADS}


def data_for(experiment: Federated, root: Path | None) -> Data:
    """Return the experiment's data set, or random images if its files are missing: these cost the same.

    Random images have the fingerprint ``random``.

    Raises:
        DataMissing: the files are missing, and the data set does not define the shape of its images.
    """
    dataset = cast(Dataset, experiment.dataset)
    try:
        return load(dataset, root)
    except DataMissing:
        if dataset.image is None or dataset.classes is None:
            raise
        train, test = dataset.counts or (10_000, 1_000)
        return random_data(dataset.image, dataset.classes, train=train, test=test)


def name_of(data: Data) -> str:
    """Return what reports of measurements call the data: their fingerprint, or that they are random."""
    return "random images" if data.fingerprint == "random" else data.fingerprint


def random_data(image: tuple[int, int, int], classes: int, *, train: int, test: int = 100) -> Data:
    """Generate images of noise, with labels that cycle through the classes."""
    generator = np.random.default_rng(0)

    def half(count: int) -> Arrays:
        images = generator.integers(0, 256, size=(count, *image), dtype=np.uint8)
        return Arrays(images, np.arange(count) % classes)

    return Data(half(train), half(test), classes, tuple(map(str, range(classes))), 255, "random")
