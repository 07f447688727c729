"""The rows of each local step's batch, and the augmentation of their images.

Both are functions of (seed, client, round), so executors, devices and resumed runs see the same batches.

Shape suffixes: E local steps, B batch, M samples, C channels, H, W pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.streams import stream

Rows = NDArray[np.int64]

#: Zero padding on each side before a random crop back to the image's own size.
CROP_PADDING = 4


def steps_of_epochs(size: int, *, epochs: int, batch_size: int, drop_last: bool = True) -> int:
    """Return the local steps of ``epochs`` passes through ``size`` samples; at least one.

    An epoch of floor(size / batch_size) batches drops the remainder. With fewer samples than a batch, a batch spans
    epochs, and the last one is filled up. Without ``drop_last`` the remainder of every epoch is a batch of its own.

    >>> steps_of_epochs(100, epochs=2, batch_size=32), steps_of_epochs(10, epochs=2, batch_size=32)
    (6, 1)
    >>> steps_of_epochs(100, epochs=2, batch_size=32, drop_last=False)
    8
    """
    if not drop_last:
        return -(-size // batch_size) * epochs
    if size >= batch_size:
        return size // batch_size * epochs
    return max(1, -(-size * epochs // batch_size))


def federated_rows(rows: Rows, *, seed: int, client: int, round: int, steps: int, batch_size: int) -> Rows:
    """Return the rows (E, B) of one client in one round, from a fresh permutation of its ``rows``.

    Batches are taken without replacement; a permutation of n rows gives floor(n / B) of them, the remainder is dropped
    and a new permutation begins. With n < B, batches are filled from consecutive whole permutations.
    """
    # All rows are shuffled although few may be needed: the first ones depend on all draws of numpy's shuffle.
    generator = stream(seed, "batches", client, round)
    size, need = len(rows), steps * batch_size
    usable = size - size % batch_size if size >= batch_size else size
    permutations = rows[np.newaxis].repeat(-(-need // usable), axis=0)
    generator.permuted(permutations, axis=1, out=permutations)
    return permutations[:, :usable].reshape(-1)[:need].reshape(steps, batch_size)


def partial_rows(
    rows: Rows, *, seed: int, client: int, round: int, steps: int, batch_size: int
) -> tuple[Rows, NDArray[np.int64]]:
    """Return the rows (E, B) of a client in a round whose epochs end with a partial batch, and each batch's size (E,).

    Every epoch is a fresh permutation of all ``rows``. A partial batch is filled up with copies of its first row, which
    do not count. Where ``batch_size`` divides the number of rows, the batches are those of ``federated_rows``.
    """
    generator = stream(seed, "batches", client, round)
    per_epoch = -(-len(rows) // batch_size)
    epochs, missing = -(-steps // per_epoch), per_epoch * batch_size - len(rows)
    permutations = rows[np.newaxis].repeat(epochs, axis=0)
    generator.permuted(permutations, axis=1, out=permutations)
    first_of_last = permutations[:, [(per_epoch - 1) * batch_size]]
    batches = np.concatenate([permutations, first_of_last.repeat(missing, axis=1)], axis=1)
    sizes = np.full((epochs, per_epoch), batch_size)
    sizes[:, -1] -= missing
    return batches.reshape(-1, batch_size)[:steps], sizes.reshape(-1)[:steps]


def consecutive_rows(rows: Rows, *, seed: int, first_step: int, steps: int, batch_size: int) -> Rows:
    """Return the rows (E, B) of ``steps`` steps of a training that passes through one permutation after another.

    ``first_step`` is the number of the first of these steps, from 0.
    """
    per_epoch = max(len(rows) // batch_size, 1)
    batches: list[Rows] = []
    for step in range(first_step, first_step + steps):
        epoch, position = divmod(step, per_epoch)
        if not batches or position == 0:
            order = stream(seed, "epochs", epoch).permutation(rows)
        batches.append(np.resize(order[position * batch_size :][:batch_size], batch_size))
    return np.stack(batches)


def draw_crops(samples: int, *, seed: int, client: int, round: int) -> Rows:
    """Return the augmentation of one client's round (M, 3): 1 to mirror, then row and column where the crop starts.

    Rows and columns are in [0, 2 * CROP_PADDING].
    """
    generator = stream(seed, "augment", client, round)
    flip = generator.integers(0, 2, size=(samples, 1), dtype=np.int64)
    offset = generator.integers(0, 2 * CROP_PADDING + 1, size=(samples, 2), dtype=np.int64)
    return np.concatenate([flip, offset], axis=1)


def crop_and_flip(images_MCHW: Tensor, crops_M3: Tensor) -> Tensor:
    """Zero-pad by CROP_PADDING, crop to the original size at each sample's offset, and mirror; any dtype."""
    height, width = images_MCHW.shape[-2:]
    padded = torch.nn.functional.pad(images_MCHW, (CROP_PADDING,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view (M, C, 9, 9, H, W)
    samples = torch.arange(len(images_MCHW), device=images_MCHW.device)
    cropped = windows[samples, :, crops_M3[:, 1], crops_M3[:, 2]]
    return torch.where((crops_M3[:, 0] > 0)[:, None, None, None], cropped.flip(-1), cropped)
