"""A decoded data set as arrays.

Shapes: N samples, C channels, H rows, W columns, D features, T tokens, G groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
#: What samples consist of: pixels as bytes, numbers, or tokens.
Samples = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int32]


@dataclass(frozen=True)
class Arrays:
    """One split (train or test) of a data set; memory-mapped and read-only when it comes from the cache."""

    images: Samples  # uint8 (N, C, H, W); float32 (N, C, H, W) or (N, D); or int32 tokens (N, T)
    labels: Ints  # (N,)
    domains: Ints | None = None  # (N,) where the set has domains
    groups: Ints | None = None  # (N, G): the place of each sample's value among those of each column that groups them


@dataclass(frozen=True)
class Data:
    """A decoded data set. Bytes mean ``images / white``, floats in [0, 1]; float32 and tokens mean themselves."""

    train: Arrays
    test: Arrays
    classes: int
    class_names: tuple[str, ...]
    white: int
    fingerprint: str
    domain_names: tuple[str, ...] = ()
    #: What users should know about how the files were read.
    notes: tuple[str, ...] = ()
    #: Different tokens of sequences, counted from 0; 0 where the samples are no sequences of tokens.
    vocabulary: int = 0
    #: The values of each column that groups the samples, in order.
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: What normalizes the network's input: mean and deviation of all channels, or of each; None: nothing does.
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a network's input for one sample: (C, H, W), (D,), or (T, V) for T of V tokens."""
        own = self.train.images.shape[1:]
        return (*own, self.vocabulary) if self.vocabulary else own


def fingerprint(train: Arrays, test: Arrays, classes: int | None = None) -> str:
    """Return the first 16 hex digits of the sha256 over every array with its type and shape, train before test.

    Groups count where there are some. The number of classes counts where the labels do not show it: it is the number
    of a model's outputs.
    """
    sha = hashlib.sha256()
    for half in (train, test):
        groups = () if half.groups is None else (half.groups,)
        for array in (half.images, half.labels, half.domains, *groups):
            if array is None:
                sha.update(b"none;")
            else:
                sha.update(f"{array.dtype.str}{array.shape};".encode())
                sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if classes is not None and classes != 1 + max(half.labels.max(initial=-1) for half in (train, test)):
        sha.update(f"{classes} classes;".encode())
    return sha.hexdigest()[:16]
