"""Statistics by which activations are normalized, of neurons (``mlp``) and of pixels (``convolutions``)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from flbench.native.mlp_layout import Kind

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
    return kind == Kind.VARIANCE or (kind == Kind.LENGTH and factor != _F(math.sqrt(_F(d))) / number)
