"""Samples that are no bytes: numbers as float32, and tokens; and the columns that group samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flbench.data.arrays import Ints
from flbench.errors import UserError

#: Tokens that sequences may count: an embedding has a row for each.
MOST_TOKENS = 10_000_000
#: Samples that are computed at once.
_BLOCK = 1024

Numbers = np.ndarray[Any, Any]


def as_floats(numbers: Numbers, where: str) -> NDArray[np.float32]:
    """Return numbers as float32; raises UserError for those that are missing or have no float32."""
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(numbers, dtype=np.float32)
    for start in range(0, len(floats), _BLOCK):
        if not np.isfinite(floats[start : start + _BLOCK]).all():
            row, *place = np.argwhere(~np.isfinite(floats[start : start + _BLOCK]))[0].tolist()
            value = numbers[(start + row, *place)]
            raise UserError(
                f"{where}: sample {start + row} holds {value}; expected finite numbers of float32: leave out such "
                "samples, or fill in what is missing"
            )
    return floats


def as_tokens(numbers: Numbers, where: str) -> NDArray[np.int32]:
    """Return whole numbers as tokens, which count from 0; raises UserError for others."""
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= MOST_TOKENS:
        raise UserError(
            f"{where}: whole numbers (N, T) are read as tokens, which count from 0 to at most {MOST_TOKENS - 1:,}; it "
            f"holds {low if low < 0 else high}. For numbers: {{name: arrays, path: ..., dtype: float32}}"
        )
    return np.ascontiguousarray(numbers, dtype=np.int32)


def standardized(train: Numbers, test: Numbers) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (x - mean) / deviation of every feature, or channel of images, with both of the training set.

    A feature that is constant in the training set is divided by 1. Mean and deviation are rounded to float32, so that
    the order of their sums changes no result.
    """
    axes = tuple(axis for axis in range(train.ndim) if axis != 1)
    shape = (1, -1, *[1] * (train.ndim - 2))
    mean = train.mean(axes, dtype=np.float64).reshape(shape)
    squares = np.zeros(mean.shape)
    for start in range(0, len(train), _BLOCK):
        squares += np.square(train[start : start + _BLOCK] - mean).sum(axes, keepdims=True)
    deviation = np.sqrt(squares / (train.size // mean.size)).astype(np.float32)
    deviation[deviation == 0] = 1
    mean = mean.astype(np.float32)
    return (train - mean) / deviation, (test - mean) / deviation


def grouped(columns: Sequence[tuple[Numbers, Numbers]]) -> tuple[Ints, Ints, list[tuple[str, ...]]]:
    """Return the place of each sample's value among those of the training set, and these values in order.

    Args:
        columns: values (N,) of each column in train and test; at least one column.

    Returns:
        Places (N, G) in train and in test, -1 where the training set lacks a value; and each column's values.
    """
    train, test, names = [], [], []
    for own, other in columns:
        values, places = np.unique(own, return_inverse=True)
        at = np.minimum(np.searchsorted(values, other), len(values) - 1)
        train.append(places)
        test.append(np.where(values[at] == other, at, -1))
        names.append(tuple(map(str, values.tolist())))
    return np.stack(train, 1).astype(np.int64), np.stack(test, 1).astype(np.int64), names
