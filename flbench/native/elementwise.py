"""Functions of single floats by operations that are rounded alike one by one and in registers.

The functions of the C library have other bits on other systems, and other ones in registers than one by one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from flbench.native.vectors import bits, of_bits

_F = np.float32
_ZERO, _ONE, _HALF = _F(0), _F(1), _F(0.5)
#: Adding it rounds to a whole number, which is then in the last bits.
_ROUND = _F(1.5 * 2**23)
_LOG2_E, _SMALLEST, _ROOT_HALF = _F(math.log2(math.e)), _F(-87), _F(math.sqrt(0.5))
#: log 2 in two parts, the first of few bits, so that its multiples are exact.
_LN2, _REST_OF_LN2 = _F(0.693359375), _F(-2.12194440e-4)
#: Coefficients of Moshier's Cephes library (expf and logf).
_E = tuple(map(_F, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)))
_L = tuple(map(_F, (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)))  # fmt: skip
_EXPONENT, _MANTISSA, _BIAS = np.int32(23), np.int32(0x7FFFFF), np.int32(127)
_OF_HALF = np.int32(126)


@njit
def exponential(x: np.float32) -> np.float32:
    """Return e^x for x up to 0, to about a unit in the last place; a NaN stays one."""
    x = _SMALLEST if x < _SMALLEST else x
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = x - n * _LN2 - n * _REST_OF_LN2
    p = (((((_E[0] * r + _E[1]) * r + _E[2]) * r + _E[3]) * r + _E[4]) * r + _E[5]) * r * r + r + _ONE
    return p * of_bits((bits(shifted) + _BIAS) << _EXPONENT)


@njit
def logarithm(x: np.float32) -> np.float32:
    """Return log x for x of at least 1, to about a unit in the last place; a NaN stays one."""
    exponent = _F((bits(x) >> _EXPONENT) - _OF_HALF)
    m = of_bits((bits(x) & _MANTISSA) | (_OF_HALF << _EXPONENT))  # in [1/2, 1)
    below = m < _ROOT_HALF
    exponent = exponent - _ONE if below else exponent
    m = m + m - _ONE if below else m - _ONE
    p = _L[0]
    for coefficient in _L[1:]:
        p = p * m + coefficient
    square = m * m
    small = p * m * square + exponent * _REST_OF_LN2 - _HALF * square
    return m + small + exponent * _LN2 + (x - x)
