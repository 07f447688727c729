"""The theory of Karakida et al. 2019, a second time: lambda_max of wide random networks of L = 3 layers of equal width.

Gaussian integrals are conditioned on what two samples share: pre-activations of variance q and correlation c are
sqrt(q |c|) z + sqrt(q (1 - |c|)) e with a common z (of opposite sign if c < 0) and their own e, so that E phi phi' is
the mean over z of a product of two single integrals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from scipy import integrate

#: L = 3 layers of equal width: alpha = sum of alpha_l alpha_(l-1) over the two hidden layers.
ALPHA = 2

PHI: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "relu": (lambda u: max(u, 0.0), lambda u: float(u > 0)),
    "tanh": (math.tanh, lambda u: math.cosh(u) ** -2),
}


def gaussian_mean(f: Callable[[float], float], kink: float = 0.0) -> float:
    """Return E f(u), u standard normal; f may have a kink."""
    weighted = lambda u: f(u) * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    cut = min(max(kink, -9.0), 9.0)
    return sum(integrate.quad(weighted, *ends, epsabs=1e-10)[0] for ends in ((-9, cut), (cut, 9)))


def overlap(f: Callable[[float], float], q: float, c: float) -> float:
    """Return E f(u) f(v) for u, v of variance q and correlation c; f may have a kink at 0."""
    shared, own = math.sqrt(q * abs(c)), math.sqrt(q * (1 - abs(c)))
    given = cache(lambda z: gaussian_mean(lambda e: f(shared * z + own * e), -shared * z / own if own else 0.0))
    return gaussian_mean(lambda z: given(z) * given(math.copysign(z, z * c) if c else z))


@cache
def kappas(activation: str, sigma_w2: float, sigma_b2: float, layer_norm: bool = False) -> tuple[float, float]:
    """Return kappa_1 and kappa_2 (eqs. 5 to 7 and 11); of a layer, the backward factor times the forward one before it.

    Layer normalization makes every pre-activation's variance 1, and divides the backward signal by the same.
    """
    phi, slope = PHI[activation]
    forward, factors = [(1.0, 0.0)], []
    for _ in range(2):
        q, q_st = (sigma_w2 * one + sigma_b2 for one in forward[-1])
        c, variance, gain = q_st / q, 1.0 if layer_norm else q, sigma_w2 / (q if layer_norm else 1.0)
        root = math.sqrt(variance)
        squares = [gaussian_mean(lambda u, f=f, root=root: f(root * u) ** 2) for f in (phi, slope)]
        forward.append((squares[0], overlap(phi, variance, c)))
        factors.append((gain * squares[1], gain * overlap(slope, variance, c)))
    backward = [(1.0, 1.0)]
    for factor in reversed(factors):
        backward.insert(0, (factor[0] * backward[0][0], factor[1] * backward[0][1]))
    kappa_1, kappa_2 = (sum(b[k] * f[k] for b, f in zip(backward, forward, strict=True)) / ALPHA for k in (0, 1))
    return kappa_1, kappa_2


def theorem_2_2(network: tuple[str, float, float], m: int) -> float:
    """Return lambda_max without normalization."""
    kappa_1, kappa_2 = kappas(*network)
    return ALPHA * ((m - 1) / m * kappa_2 + kappa_1 / m) * m


def bounds(normalized: str, network: tuple[str, float, float], m: int, record: dict) -> tuple[float, float]:
    """Return the bounds of theorem 3.3, eq. 19 (one output), theorem 3.4 (phi >= 0) or theorem 4.1 at T = M."""
    if normalized == "bn-middle" and network[0] == "relu":
        return middle(m), math.inf
    if normalized == "ln-all":
        kappa_1, kappa_2 = kappas(*network, layer_norm=True)
        eta_1, eta_2, c = record["eta1"], record["eta2"], 10 - 2
        s = (record["eta3_squared"] - eta_1**2 + c * (eta_1**2 - eta_2 / m)) * kappa_2**2 + c * eta_2 * kappa_1**2 / m
        return ALPHA * s * m / (c * eta_1 * kappa_1), ALPHA * math.sqrt(s) * m
    if normalized in ("mean-last", "bn-last"):
        kappa_1, kappa_2 = kappas(*network)
        sigma2 = record["sigmas"][0] ** 2 if normalized == "bn-last" else 1.0
        least = ALPHA * (kappa_1 - kappa_2) / sigma2
        return least, least * math.sqrt(m)
    return math.nan, math.nan


@cache
def middle(m: int) -> float:
    """Return theorem 3.4's bound for ReLU: a batch of M normalized samples has correlations -1 / (M - 1)."""
    relu = PHI["relu"][0]
    return (m - 1) * overlap(relu, 1.0, -1 / (m - 1)) + gaussian_mean(lambda u: relu(u) ** 2)
