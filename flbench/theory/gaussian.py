"""Averages of activations over Gaussian pre-activations.

Closed forms for ReLU and the identity; for any other activation Gauss-Legendre quadrature on every smooth piece.
(Gauss-Hermite is 1 % wrong for tanh'^2 at 40 nodes, and meaningless across a kink; a trapezoid rule on the same pieces
agrees, but needs thousands of nodes next to a kink.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array: TypeAlias = NDArray[np.float64]
Function: TypeAlias = Callable[[Array], Array]

#: Standard deviations beyond which a Gaussian is nothing in float64.
REACH = 10.0

#: Nodes on each smooth piece.
NODES = 400


@dataclass(frozen=True)
class Activation:
    """An activation function and its properties.

    Attributes:
        name: its name in YAML.
        value: phi, element by element.
        slope: phi', a weak derivative.
        kinks: where ``value`` or ``slope`` is not smooth.
        non_negative: whether phi >= 0 everywhere.
    """

    name: str
    value: Function
    slope: Function
    kinks: tuple[float, ...] = ()
    non_negative: bool = False

    def square(self, q: float) -> float:
        """Return E phi(u)^2, u ~ N(0, q)."""
        return _mean(lambda u: self.value(u) ** 2, q, self.kinks)

    def product(self, q: float, c: float) -> float:
        """Return E phi(u) phi(v) for u, v ~ N(0, q) with correlation c: the paper's I_phi[q, c q]."""
        return _mean_of_product(self.value, q, c, self.kinks)

    def slope_square(self, q: float) -> float:
        """Return E phi'(u)^2, u ~ N(0, q)."""
        return _mean(lambda u: self.slope(u) ** 2, q, self.kinks)

    def slope_product(self, q: float, c: float) -> float:
        """Return E phi'(u) phi'(v) for u, v ~ N(0, q) with correlation c: the paper's I_phi'[q, c q]."""
        return _mean_of_product(self.slope, q, c, self.kinks)


class _Relu(Activation):
    """max(u, 0): arc-cosine kernels of orders 1 and 0 (Cho and Saul 2009)."""

    def square(self, q: float) -> float:
        return q / 2

    def product(self, q: float, c: float) -> float:
        return q / 2 * arccosine(c)

    def slope_square(self, q: float) -> float:
        return 0.5

    def slope_product(self, q: float, c: float) -> float:
        return float(np.pi - np.arccos(_clip(c))) / (2 * np.pi)


class _Linear(Activation):
    """The identity."""

    def square(self, q: float) -> float:
        return q

    def product(self, q: float, c: float) -> float:
        return q * c

    def slope_square(self, q: float) -> float:
        return 1.0

    def slope_product(self, q: float, c: float) -> float:
        return 1.0


def arccosine(c: float) -> float:
    """Return the arc-cosine kernel (sqrt(1 - c^2) + c (pi - arccos c)) / pi, which is 2/q times ReLU's E phi(u) phi(v).

    >>> arccosine(1.0), arccosine(-1.0), round(arccosine(0.0), 4)
    (1.0, 0.0, 0.3183)
    """
    c = _clip(c)
    return float((np.sqrt(1 - c * c) + c * (np.pi - np.arccos(c))) / np.pi)


def _clip(c: float) -> float:
    return min(1.0, max(-1.0, c))


def _density(z: Array) -> Array:
    density: Array = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return density


@cache
def _legendre() -> tuple[Array, Array]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = special.roots_legendre(NODES)
    return (nodes + 1) / 2, weights / 2


def _pieces(cuts: Array) -> tuple[Array, Array]:
    """Return nodes and weights of a quadrature on [-REACH, REACH], cut at ``cuts`` (..., K); one axis of pieces."""
    edge = np.full((*cuts.shape[:-1], 1), REACH)
    bounds = np.concatenate([-edge, np.sort(np.clip(cuts, -REACH, REACH), axis=-1), edge], axis=-1)
    low, width = bounds[..., :-1, None], np.diff(bounds, axis=-1)[..., None]
    nodes, weights = _legendre()
    flat = (*cuts.shape[:-1], -1)
    return (low + width * nodes).reshape(flat), (width * weights).reshape(flat)


def _mean(f: Function, q: float, kinks: tuple[float, ...]) -> float:
    """Return E f(sqrt(q) z), z standard normal."""
    if q == 0:
        return float(f(np.zeros(1))[0])
    z, weights = _pieces(np.asarray(kinks, dtype=np.float64) / np.sqrt(q))
    return float(np.sum(weights * _density(z) * f(np.sqrt(q) * z)))


def _mean_of_product(f: Function, q: float, c: float, kinks: tuple[float, ...]) -> float:
    """Return E f(sqrt(q) x) f(sqrt(q) (c x + sqrt(1 - c^2) y)), x and y standard normal and independent."""
    c = _clip(c)
    if c == 1 or q == 0:
        return _mean(lambda u: f(u) ** 2, q, kinks)
    if c == -1:
        return _mean(lambda u: f(u) * f(-u), q, (*kinks, *(-kink for kink in kinks)))
    root, rest = np.sqrt(q), np.sqrt(1 - c * c)
    scaled = np.asarray(kinks, dtype=np.float64) / root
    x_I, weights_I = _pieces(scaled)
    y_IJ, weights_IJ = _pieces((scaled - c * x_I[:, None]) / rest)
    inner_I = np.sum(weights_IJ * _density(y_IJ) * f(root * (c * x_I[:, None] + rest * y_IJ)), axis=1)
    return float(np.sum(weights_I * _density(x_I) * f(root * x_I) * inner_I))


def _sigmoid_slope(u: Array) -> Array:
    s: Array = special.expit(u)
    return s * (1 - s)


RELU = _Relu("relu", lambda u: np.maximum(u, 0), lambda u: np.heaviside(u, 0.5), (0.0,), non_negative=True)
LINEAR = _Linear("linear", lambda u: u, np.ones_like)
TANH = Activation("tanh", np.tanh, lambda u: 1 / np.cosh(u) ** 2)
ERF = Activation("erf", special.erf, lambda u: 2 / np.sqrt(np.pi) * np.exp(-(u**2)))
SIGMOID = Activation("sigmoid", special.expit, _sigmoid_slope, non_negative=True)
LEAKY_RELU = Activation(
    "leaky-relu", lambda u: np.where(u > 0, u, 0.01 * u), lambda u: np.where(u > 0, 1.0, 0.01), (0.0,)
)

#: Every activation by its name.
ACTIVATIONS = {one.name: one for one in (RELU, LINEAR, TANH, ERF, SIGMOID, LEAKY_RELU)}
