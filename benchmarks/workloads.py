"""The workloads of several measurements: experiments, the rounds of a turn, and their data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Data
from flbench.data.datasets import Dataset
from flbench.data.random_images import load_or_random


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
        """Return the experiment on a device, with changes to some fields."""
        own = {**self.fields, **(self.gpu_fields if device == "cuda" else {})}
        return cast(Federated, parse_experiment({"partition": "iid", **own, **changes}))

    def turn(self, device: str) -> int:
        """Return the rounds in one turn on a device."""
        return self.gpu_rounds if device == "cuda" else self.rounds


_LENET = {
    "dataset": "fashion_mnist", "model": "lenet", "bias": True, "batch_size": 64, "momentum": 0.9, "weight_decay": 1e-5
}  # fmt: skip
_RESNET18 = {"dataset": "cifar10", "model": "resnet18", "clients": 4, "local_steps": 1}

#: Every workload by its name. ResNet-18 has few clients and steps on a CPU, where a round takes seconds.
WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("digits", "digits, MLP 64-128-10", {"model": {"name": "mlp", "widths": [128]}}, 20),
        Workload("mlp", "digits, the default MLP", {}, 20),
        Workload("lenet", "Fashion-MNIST, LeNet", _LENET, 2),
        Workload("cifar10", "CIFAR-10, CNN", {"dataset": "cifar10", "model": "cnn"}, 1),
        Workload("resnet18", "CIFAR-10, ResNet-18", _RESNET18, 1, 3, {"clients": 10, "local_steps": 10}),
    )
}


def data_of(experiment: Federated, root: Path | None) -> Data:
    """Return an experiment's data set, or random images if its files are missing."""
    return load_or_random(cast(Dataset, experiment.dataset), root)
