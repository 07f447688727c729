"""Statistics by which activations are normalized, of neurons (``mlp``) and of pixels (``convolutions``)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from flbench.native.mlp_layout import Kind
from flbench.native.vectors import put, real

_F = np.float32
_ONE = _F(1)


@njit
def norm_factor(kind: int, square: np.float32, d: int, number: np.float32) -> np.float32:
    """Return what a normalization multiplies d elements by, from the sum of their squares."""
    if kind == Kind.VARIANCE:
        return _ONE / _F(math.sqrt(square / _F(d) + number))
    if kind == Kind.LENGTH:
        length = _F(math.sqrt(square))
        return _F(math.sqrt(_F(d))) / (number if length < number else length)
    return number  # 1 of what only subtracts the mean


@njit
def factor_varies(kind: int, factor: np.float32, d: int, number: np.float32) -> bool:
    """Return whether a factor depends on the elements."""
    return kind in (Kind.VARIANCE, Kind.BATCH) or (kind == Kind.LENGTH and factor != _F(math.sqrt(_F(d))) / number)


@njit
def of_batch(mean, square, d, number, running, variance, momentum):  # type: ignore[no-untyped-def]
    """Return by which mean and factor a channel of a batch is normalized, and move its running statistics.

    Args:
        mean: that of its d elements.
        square: the sum of their squared deviations from it.
        d: at least 2.
        number: ``eps``.
        running: address of the channel's running mean.
        variance: address of its running variance.
        momentum: address of the number by which they move; 0: nothing moves, and they normalize.
    """
    if not momentum:
        return real(running, 0), norm_factor(Kind.VARIANCE, real(variance, 0), 1, number)
    _move(running, mean, momentum)
    _move(variance, square / _F(d - 1), momentum)
    return mean, norm_factor(Kind.VARIANCE, square, d, number)


@njit
def _move(running: int, seen: np.float32, momentum: int) -> None:
    put(running, 0, real(running, 0) + real(momentum, 0) * (seen - real(running, 0)))
