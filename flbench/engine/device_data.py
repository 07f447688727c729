"""A data set on the device, and the gathering of a round's batches from it.

Shape suffixes: N clients, E local steps, B batch, M samples, C channels, H, W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flbench.data.batches import Crops, Rows, crop_and_flip, draw_crops, to_float


@dataclass(frozen=True)
class ClientBatches:
    """What one client sees in one round: training rows (E, B), and how each is cropped and mirrored (M = E * B)."""

    rows_EB: Rows
    crops: Crops | None


@dataclass(frozen=True)
class DeviceData:
    """A data set on the device.

    Attributes:
        train_MCHW: uint8 training images; ``train_labels_M``: int64.
        test_MCHW: uint8 test images; ``test_labels_M``: int64.
        classes: number of classes.
        white: the uint8 value that means 1.0.
        dtype: of the pixels as the network sees them.
        augment: whether training images are flipped and cropped at random.
    """

    train_MCHW: Tensor
    train_labels_M: Tensor
    test_MCHW: Tensor
    test_labels_M: Tensor
    classes: int
    white: int
    dtype: torch.dtype
    augment: bool

    def draw(self, rows_EB: Rows, *, seed: int, client: int, round: int) -> ClientBatches:
        """These rows, with the augmentation of the client's round."""
        crops = draw_crops((rows_EB.size,), seed=seed, client=client, round=round) if self.augment else None
        return ClientBatches(rows_EB, crops)

    def gather(self, batches: Sequence[ClientBatches]) -> tuple[Tensor, Tensor]:
        """Raw images (E, N, B, C, H, W) and labels (E, N, B) of a stack of clients, gathered and augmented at once.

        Where clients take unequal numbers of steps, E is the most of them, and the rest is zero.
        """
        if len({batch.rows_EB.shape for batch in batches}) > 1:
            apart = [self.gather([batch]) for batch in batches]
            images, labels = ([part[:, 0] for part in parts] for parts in zip(*apart, strict=True))
            return nn.utils.rnn.pad_sequence(images), nn.utils.rnn.pad_sequence(labels)
        rows_ENB = np.stack([batch.rows_EB for batch in batches], axis=1)
        rows = torch.from_numpy(rows_ENB).to(self.train_MCHW.device)
        crops = [batch.crops for batch in batches if batch.crops is not None]
        return self.take(rows, _side_by_side(crops, rows_ENB.shape).to(rows.device) if crops else None)

    def take(self, rows_ENB: Tensor, crops: Crops | None) -> tuple[Tensor, Tensor]:
        """The same of rows on the device, with the augmentation of every sample (E * N * B)."""
        index = rows_ENB.reshape(-1)
        pixels = self.train_MCHW.index_select(0, index)
        if crops is not None:
            pixels = crop_and_flip(pixels, crops)
        return pixels.unflatten(0, rows_ENB.shape), self.train_labels_M.index_select(0, index).view(rows_ENB.shape)

    def prepare(self, images_MCHW: Tensor) -> Tensor:
        """Raw images as the network sees them."""
        return to_float(images_MCHW, self.white, self.dtype)


def _side_by_side(crops: Sequence[Crops], shape_ENB: tuple[int, int, int]) -> Crops:
    """The choices of clients (E * B each) for samples that lie as (E, N, B)."""
    steps, _, batch = shape_ENB

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.unflatten(0, (steps, batch)) for part in parts], dim=1).flatten(0, 2)

    return Crops(flip=join([one.flip for one in crops]), offset=join([one.offset for one in crops]))
