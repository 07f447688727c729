"""The plain loop does the work of the engine: the same steps, batches of the same sizes, the same average."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from flbench.bench import loop as loop_module
from flbench.bench.loop import PlainLoop, augment, from_memory
from flbench.bench.timing import trainer_of
from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.datasets import Dataset, load
from flbench.data.random_images import random_data
from flbench.data.shards import shards_of


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # tiny problems are too small for several threads


def experiment(**fields: Any) -> Federated:
    common = {"model": {"name": "mlp", "widths": [8]}, "clients": 3, "lr": 0.1, "precision": "fp64"}
    return cast(Federated, parse_experiment({**common, **fields}))


#: Each batch has all samples of its client, so that the order in which they are drawn does not matter.
FULL = {"partition": "dirichlet:0.5", "batch_size": 2000, "local_epochs": 3, "drop_last": False}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
        {"norm": "ln", "bias": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("way", [{}, {"fused": True, "memory_format": torch.channels_last}], ids=["plain", "last"])
def test_the_loop_computes_what_the_engine_computes(fields: dict[str, Any], way: dict[str, Any]) -> None:
    same = experiment(**FULL, **fields)
    data = load(cast(Dataset, same.dataset), None)
    trainer, loop = trainer_of(same, data, "cpu"), PlainLoop(same, data, **way)
    for _ in range(2):
        trainer.step()
        loop.round()
    for ours, plain in zip(trainer.model(0)[0].values(), loop.network.parameters(), strict=True):
        assert (ours - plain).abs().max() < 1e-9


def sizes(same: Federated, data: Data) -> list[list[int]]:
    """Return the sizes of the batches of each client's round."""
    loop, found = PlainLoop(same, data), []
    for batches, steps in zip(loop._batches, loop._steps, strict=True):
        found.append([len(labels) for _, labels in islice(batches(), steps)])
    return found


def test_batches_have_the_sizes_of_the_engine() -> None:
    """The remainder of a pass is dropped, or a batch of its own; a client smaller than a batch fills it."""
    data = random_data((1, 8, 8), 10, train=35)
    assert sizes(experiment(partition="iid", clients=2, batch_size=8, local_epochs=2), data) == [[8] * 4] * 2
    partial_batches = experiment(partition="iid", clients=2, batch_size=8, local_epochs=2, drop_last=False)
    assert {tuple(own) for own in sizes(partial_batches, data)} == {(8, 8, 2) * 2, (8, 8, 1) * 2}
    assert sizes(experiment(partition="iid", clients=2, batch_size=32, local_steps=3), data) == [[32] * 3] * 2


def test_a_cohort_trains_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    same = experiment(partition="iid", clients=10, participation=0.3, local_steps=2)
    loop = PlainLoop(same, load(cast(Dataset, same.dataset), None))
    trained: list[int] = []
    monkeypatch.setattr(loop, "_train", trained.append)
    loop.round()
    assert len(trained) == len(set(trained)) == 3


class Linear(nn.Module):
    """A linear classifier that returns features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = images.flatten(1)
        return features, self.head(features)


def test_plain_loop_is_federated_averaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 2 and 1 samples, full batches, one step from zero: w = sum of n_i / n * lr * (one-hot - 1/2) x^T."""
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    labels = np.array([0, 1, 1])
    data = Data(Arrays(pixels, labels), Arrays(pixels, labels), 2, ("0", "1"), 1, "toy")
    rows, network = [np.array([0, 1]), np.array([2])], Linear()
    monkeypatch.setattr(loop_module, "shards_of", lambda *_: SimpleNamespace(train=rows))
    monkeypatch.setattr(loop_module, "make_network", lambda *_: network)
    same = experiment(**{**FULL, "batch_size": 2, "clients": 2, "local_epochs": 1, "lr": 0.5})
    PlainLoop(same, data).round()
    x = pixels.reshape(3, 4).astype(float)
    descent = (np.eye(2)[labels] - 0.5)[:, :, None] * x[:, None, :]
    expected = 0.5 * (2 / 3 * descent[:2].mean(0) + 1 / 3 * descent[2])
    assert np.abs(network.head.weight.detach().numpy() - expected).max() < 1e-12


def test_images_are_between_0_and_1_and_augmented_in_their_shape() -> None:
    data = random_data((3, 32, 32), 10, train=40)
    same = experiment(dataset="cifar10", model="lenet", bias=True, clients=2, precision="fp32", partition="iid")
    assert same.augment == "flip-crop"
    for batches in from_memory(same, data, shards_of(same, data).train, "cpu"):
        images, _ = next(batches())
        assert images.shape == (32, 3, 32, 32) and images.dtype == torch.float32
        assert images.min() >= 0 and 0.9 < images.max() <= 1


def test_augmentation_shifts_and_flips() -> None:
    torch.manual_seed(0)
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1
    many = augment(image.expand(500, 1, 9, 9))
    assert many.sum((1, 2, 3)).tolist() == [1] * 500  # at most 4 pixels away, never out of the image
    assert (many.sum(0)[0] > 0).all()
