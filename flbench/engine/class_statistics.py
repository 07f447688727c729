"""Means and covariances of each class's features over all training data of a client, or of a stack of clients.

The sums of a client are those of batches of one size, to which samples that do not count add exact zeros. So neither
the other clients of a stack nor the number of batches changes a bit.

Shape suffixes: N clients (absent for one), B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from flbench.engine.device_data import OwnBatch
from flbench.methods.base import Tree


def class_statistics(
    features: Callable[[Tensor], Tensor], own: Iterable[OwnBatch], counts_Y: Tensor, *, covariances: bool
) -> Tree:
    """Return ``means_YD``, zero for a class without samples, and ``covariances_YDD``, zero with fewer than two.

    Args:
        features: from the network's input to the features, (B, D) or (N, B, D).
        own: all training data of the clients.
        counts_Y: training samples of each class, (Y,) or (N, Y).
        covariances: whether to compute them; they are divided by one less than the number of samples.

    Returns:
        Leaves in the features' dtype; sums are in float64, except on MPS, which has none.
    """
    wide = torch.float32 if counts_Y.device.type == "mps" else torch.float64
    classes_Y1 = torch.arange(counts_Y.shape[-1], device=counts_Y.device).unsqueeze(-1)
    sums_YD = squares_YDD = counts_Y.new_zeros((), dtype=wide)
    for images, labels_B, there_B in own:
        out_BD = features(images)
        wide_BD = out_BD.to(wide)
        of_class_YB = ((labels_B.unsqueeze(-2) == classes_Y1) & there_B.unsqueeze(-2)).to(wide)
        sums_YD = sums_YD + of_class_YB @ wide_BD
        if covariances:
            each_YDB = of_class_YB.unsqueeze(-2) * wide_BD.mT.unsqueeze(-3)
            products = each_YDB.flatten(-3, -2) @ wide_BD  # one product of all classes
            squares_YDD = squares_YDD + products.unflatten(-2, each_YDB.shape[-3:-1])
    counts_Y1 = counts_Y.to(wide).unsqueeze(-1)
    means_YD = sums_YD / counts_Y1.clamp(min=1)
    found = {"means_YD": means_YD}
    if covariances:
        centred_YDD = squares_YDD - sums_YD.unsqueeze(-1) * means_YD.unsqueeze(-2)
        n_Y11 = counts_Y1.unsqueeze(-1)
        found["covariances_YDD"] = torch.where(n_Y11 > 1, centred_YDD / (n_Y11 - 1).clamp(min=1), 0)
    return {name: leaf.to(out_BD.dtype) for name, leaf in found.items()}
