"""What is trained for a measurement: an experiment, its data, and the arithmetic in one sample of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.datasets import Dataset, load
from flbench.errors import DataMissing


@dataclass(frozen=True)
class Workload:
    """A kind of training that is measured.

    Attributes:
        name: how users call it. ``what``: what it is, in words.
        fields: of the experiment; the partition is iid, since who holds which classes changes no cost.
        rounds: in one turn, so that a turn takes long enough to be measured. ``gpu_rounds``: likewise on a GPU.
        gpu_fields: what is otherwise there, where more can be afforded.
    """

    name: str
    what: str
    fields: Mapping[str, Any]
    rounds: int
    gpu_rounds: int = 20
    gpu_fields: Mapping[str, Any] = field(default_factory=dict)

    def experiment(self, device: str = "cpu", **changes: Any) -> Federated:
        """The experiment, with other values in some fields."""
        own = {**self.fields, **(self.gpu_fields if device == "cuda" else {})}
        return cast(Federated, parse_experiment({"partition": "iid", **own, **changes}))

    def turn(self, device: str) -> int:
        """Rounds in one turn."""
        return self.gpu_rounds if device == "cuda" else self.rounds


_WORKLOADS = (
    Workload("digits", "digits, MLP 64-128-10", {"model": {"name": "mlp", "widths": [128]}}, rounds=20),
    Workload("mlp", "digits, the default MLP", {}, rounds=20),
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

#: Every workload by its name; ResNet-18 with few clients and steps, since a round of it takes seconds on a CPU.
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _WORKLOADS}


def data_for(experiment: Federated, root: Path | None) -> Data:
    """The experiment's data set, or random images in its place, which cost the same, where its files are missing.

    Such images have the fingerprint ``random``.
    """
    dataset = cast(Dataset, experiment.dataset)
    try:
        return load(dataset, root)
    except DataMissing:
        if dataset.image is None or dataset.classes is None:
            raise
        train, test = dataset.counts or (10_000, 1_000)
        return random_data(dataset.image, dataset.classes, train=train, test=test)


def random_data(image: tuple[int, int, int], classes: int, *, train: int, test: int = 100) -> Data:
    """Images of noise whose labels cycle through the classes."""
    generator = np.random.default_rng(0)

    def half(count: int) -> Arrays:
        images = generator.integers(0, 256, size=(count, *image), dtype=np.uint8)
        return Arrays(images, np.arange(count) % classes)

    return Data(half(train), half(test), classes, tuple(map(str, range(classes))), 255, "random")


def training_flops(network: nn.Module, image: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Floating-point operations of matrix products and convolutions, forward and backward, for one sample.

    Counted on a real backward pass, so the gradient of the images, which nobody computes, is not in it.
    """
    from torch.utils.flop_counter import FlopCounterMode

    samples = 2  # batch normalization refuses one
    counter = FlopCounterMode(display=False)
    with counter:
        network(torch.zeros(samples, *image, dtype=dtype))[1].sum().backward()
    network.zero_grad()
    return counter.get_total_flops() / samples
