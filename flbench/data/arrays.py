"""A decoded data set as arrays. Shapes: N samples, C channels, H rows, W columns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Arrays:
    """One split (train or test) of a data set; memory-mapped and read-only when it comes from the cache."""

    images: Bytes  # (N, C, H, W)
    labels: Ints  # (N,)
    domains: Ints | None = None  # (N,) where the set has domains


@dataclass(frozen=True)
class Data:
    """A decoded data set. An image is ``images / white`` as floats in [0, 1], less the mean and over the deviation."""

    train: Arrays
    test: Arrays
    classes: int
    class_names: tuple[str, ...]
    white: int
    fingerprint: str
    domain_names: tuple[str, ...] = ()
    #: What users should know about how the files were read.
    notes: tuple[str, ...] = ()
    #: What normalizes the network's input: mean and deviation of all channels, or of each; None: nothing does.
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def fingerprint(train: Arrays, test: Arrays, classes: int | None = None) -> str:
    """Return the first 16 hex digits of the sha256 over every array with its type and shape, train before test.

    The number of classes counts where the labels do not show it: it is the number of a model's outputs.
    """
    sha = hashlib.sha256()
    for half in (train, test):
        for array in (half.images, half.labels, half.domains):
            if array is None:
                sha.update(b"none;")
            else:
                sha.update(f"{array.dtype.str}{array.shape};".encode())
                sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if classes is not None and classes != 1 + max(half.labels.max(initial=-1) for half in (train, test)):
        sha.update(f"{classes} classes;".encode())
    return sha.hexdigest()[:16]
