"""Batches of the plain loop as most code has them: from a ``DataLoader`` over single images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms

from flbench.bench.loop import Batches
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.data.batches import CROP_PADDING, Rows


class SingleImages(Dataset[tuple[Tensor, int]]):
    """Single samples; augmented, if at all, by transforms of PIL images, as torchvision's examples do."""

    def __init__(self, data: Data, *, augment: bool) -> None:
        self._images, self._labels, self._white = np.array(data.train.images), data.train.labels.tolist(), data.white
        crop = transforms.RandomCrop(data.train.images.shape[-1], padding=CROP_PADDING)
        to_pil, flip = transforms.ToPILImage(), transforms.RandomHorizontalFlip()
        self._transform = transforms.Compose([to_pil, crop, flip, transforms.ToTensor()]) if augment else None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self._images[index])
        pixels = self._transform(image) if self._transform else image.float() / self._white
        return pixels, self._labels[index]


def loaders(experiment: Federated, data: Data, rows: Sequence[Rows], device: str) -> Sequence[Batches]:
    """Return a source for ``PlainLoop``, a loader for each client, without worker processes.

    Worker processes would start again for each client in each round, which costs more than they save.
    """
    samples = SingleImages(data, augment=experiment.augment == "flip-crop")
    dtype = torch.float64 if experiment.precision == "fp64" else torch.float32

    def source(own: Rows) -> Batches:
        drop_last = experiment.drop_last and len(own) >= experiment.batch_size
        subset = Subset(samples, own.tolist())
        loader = DataLoader(subset, experiment.batch_size, shuffle=True, drop_last=drop_last)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            while True:
                for images, labels in loader:
                    yield images.to(device, dtype), labels.to(device)

        return batches

    return [source(own) for own in rows]
