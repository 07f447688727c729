"""Federated averaging in plain PyTorch, as most code has it: the baseline of the engine's speed.

Clients train one after another: a module, ``optim.SGD``, and batches either from images in memory, augmented as
tensors (the careful way), or from a ``DataLoader`` over single images (the usual way).

Shape suffixes: M samples, B batch, C channels, H, W pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.data.batches import CROP_PADDING
from flbench.models.layers import PooledConv

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Training:
    """What a client does in a round."""

    steps: int
    batch_size: int
    lr: float
    augment: bool
    dtype: torch.dtype
    device: str
    momentum: float = 0
    weight_decay: float = 0

    @classmethod
    def of(cls, experiment: Federated, device: str) -> Training:
        """The training of an experiment, without mixed precision."""
        return cls(
            steps=cast(int, experiment.local_steps),
            batch_size=experiment.batch_size,
            lr=experiment.lr,
            augment=experiment.augment == "flip-crop",
            dtype=torch.float64 if experiment.precision == "fp64" else torch.float32,
            device=device,
            momentum=experiment.momentum,
            weight_decay=experiment.weight_decay,
        )


class PlainLoop:
    """Rounds of federated averaging.

    Args:
        network: a module that returns (features, logits); it is trained in place, by torch's own functions.
        data: the data set.
        rows: the training rows of each client.
        training: what a client does in a round.
        source: where batches come from: tensors in memory, or a ``DataLoader`` over single images.
    """

    def __init__(
        self,
        network: nn.Module,
        data: Data,
        rows: Sequence[np.ndarray[Any, Any]],
        training: Training,
        source: Literal["memory", "loader"],
    ) -> None:
        self.network, self._training = network, training
        use_torch_alone(network)
        self._sizes = [len(own) for own in rows]
        self._clients = _from_memory(data, rows, training) if source == "memory" else _loaders(data, rows, training)

    def round(self) -> None:
        """Train every client from the same weights, then average, weighted by numbers of samples."""
        start = copy.deepcopy(self.network.state_dict())
        total = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
        for batches, size in zip(self._clients, self._sizes, strict=True):
            self.network.load_state_dict(start)
            self._train(batches())
            for name, leaf in self.network.state_dict().items():
                total[name] += leaf * (size / sum(self._sizes))
        self.network.load_state_dict(total)

    def _train(self, batches: Batches) -> None:
        training = self._training
        self.network.train()
        optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        for images, labels in islice(batches, training.steps):
            optimizer.zero_grad()
            logits = self.network(images.to(training.device, training.dtype))[1]
            nn.functional.cross_entropy(logits, labels.to(training.device)).backward()
            optimizer.step()


def use_torch_alone(network: nn.Module) -> None:
    """Let a network compute its gradients by autograd, without those that flbench derives by hand."""
    for layer in network.modules():
        if isinstance(layer, PooledConv):
            layer.by_hand = False


def _from_memory(data: Data, rows: Sequence[np.ndarray[Any, Any]], training: Training) -> list[Callable[[], Batches]]:
    """Return an endless source of batches for each client, gathered from one tensor of all images."""
    images = torch.from_numpy(np.array(data.train.images)).to(training.device)
    labels = torch.from_numpy(np.array(data.train.labels)).to(training.device)

    def source(own: Tensor) -> Callable[[], Batches]:
        def batches() -> Batches:
            while True:
                order = own[torch.randperm(len(own), device=own.device)]
                for batch in order.split(training.batch_size)[: max(1, len(own) // training.batch_size)]:
                    pixels = augment(images[batch]) if training.augment else images[batch]
                    yield pixels.to(training.dtype) / data.white, labels[batch]

        return batches

    return [source(torch.from_numpy(own).to(training.device)) for own in rows]


def augment(images_BCHW: Tensor) -> Tensor:
    """Pad with zeros, crop at random to the original size, and flip half of the images."""
    count, channels, height, width = images_BCHW.shape
    device = images_BCHW.device
    padded = nn.functional.pad(images_BCHW, (CROP_PADDING,) * 4)
    top, left = torch.randint(0, 2 * CROP_PADDING + 1, (2, count), device=device)
    rows = (top[:, None] + torch.arange(height, device=device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=device))[:, None, None, :]
    sample = torch.arange(count, device=device)[:, None, None, None]
    crops = padded[sample, torch.arange(channels, device=device)[None, :, None, None], rows, columns]
    return torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.5, crops.flip(-1), crops)


def _loaders(data: Data, rows: Sequence[np.ndarray[Any, Any]], training: Training) -> list[Callable[[], Batches]]:
    """Return an endless source of batches for each client, from a loader of its own without worker processes.

    Worker processes would start again for each client in each round, which costs more than they save.
    """
    samples = _SingleImages(data, training.augment)

    def source(own: np.ndarray[Any, Any]) -> Callable[[], Batches]:
        loader = DataLoader(
            Subset(samples, own.tolist()),
            training.batch_size,
            shuffle=True,
            drop_last=len(own) >= training.batch_size,
        )

        def batches() -> Batches:
            while True:
                yield from loader

        return batches

    return [source(own) for own in rows]


class _SingleImages(Dataset[tuple[Tensor, int]]):
    """Single samples; augmented, if at all, by transforms of PIL images, as torchvision's examples do."""

    def __init__(self, data: Data, augment: bool) -> None:
        from torchvision import transforms

        self._images, self._labels, self._white = np.array(data.train.images), data.train.labels.tolist(), data.white
        crop = transforms.RandomCrop(data.train.images.shape[-1], padding=CROP_PADDING)
        to_pil, flip = transforms.ToPILImage(), transforms.RandomHorizontalFlip()
        self._transform = transforms.Compose([to_pil, crop, flip, transforms.ToTensor()]) if augment else None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self._images[index])
        pixels = self._transform(image) if self._transform else image.float() / self._white
        return pixels, self._labels[index]
