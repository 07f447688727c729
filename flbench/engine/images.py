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
class Batch:
    """What one client sees in one round: training rows (E, B), and how each is cropped and mirrored (M = E * B)."""

    rows_EB: Rows
    crops: Crops | None


@dataclass(frozen=True)
class Images:
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

    def draw(self, rows_EB: Rows, *, seed: int, client: int, round: int) -> Batch:
        """These rows, with the augmentation of the client's round."""
        crops = draw_crops((rows_EB.size,), seed=seed, client=client, round=round) if self.augment else None
        return Batch(rows_EB, crops)

    def gather(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Images (N, E, B, C, H, W) and labels (N, E, B) of a stack of clients, gathered and augmented at once.

        Where clients take unequal numbers of steps, E is the most of them, and the rest is zero.
        """
        shape = batches[0].rows_EB.shape
        if any(batch.rows_EB.shape != shape for batch in batches):
            apart = [self.gather([batch]) for batch in batches]
            images, labels = ([part[0] for part in parts] for parts in zip(*apart, strict=True))
            pad = nn.utils.rnn.pad_sequence
            return pad(images, batch_first=True), pad(labels, batch_first=True)
        rows = np.concatenate([batch.rows_EB.reshape(-1) for batch in batches])
        index = torch.from_numpy(rows).to(self.train_MCHW.device)
        pixels = self.train_MCHW[index]
        crops = [batch.crops for batch in batches if batch.crops is not None]
        if crops:
            flip, offset = torch.cat([one.flip for one in crops]), torch.cat([one.offset for one in crops])
            pixels = crop_and_flip(pixels, Crops(flip.to(pixels.device), offset.to(pixels.device)))
        stacked = (len(batches), *shape)
        return self.prepare(pixels).view(*stacked, *pixels.shape[1:]), self.train_labels_M[index].view(stacked)

    def prepare(self, images_MCHW: Tensor) -> Tensor:
        """Raw images as the network sees them."""
        return to_float(images_MCHW, self.white, self.dtype)
