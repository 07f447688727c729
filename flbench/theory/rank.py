"""Ranks of representations (Daneshmand et al. 2020, Batch Normalization Provably Avoids Rank Collapse).

H (d x N) holds a layer's d features of N samples, M = H H^T / N.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from flbench.theory.gaussian import Array

#: Share of the mean eigenvalue above which one counts in the soft rank; the poster names none.
TAU = 0.5


def effective_rank(eigenvalues: Array) -> float:
    """Return r(H) = Tr(M)^2 / ||M||_F^2 from the eigenvalues of M: between 1 and their number, at any scale.

    >>> effective_rank(np.array([1.0, 1.0, 1.0, 1.0])), effective_rank(np.array([0.0, 0.0, 5.0]))
    (4.0, 1.0)
    """
    scaled = eigenvalues / np.max(eigenvalues)  # M^2 under- and overflows in deep networks
    return float(scaled.sum() ** 2 / np.sum(scaled**2))


def soft_rank(eigenvalues: Array, tau: float = TAU) -> int:
    """Return rank_tau(H), the number of eigenvalues of M that are at least tau times their mean.

    The mean is 1 under batch normalization, where Tr(M) = d; without it, it is the only meaningful scale. Then
    rank_tau >= (1 - tau)^2 r(H) (Paley and Zygmund).

    >>> soft_rank(np.array([0.1, 1.0, 1.0, 4.0]))
    3
    """
    return int(np.count_nonzero(eigenvalues >= tau * eigenvalues.mean()))


def eigenvalues(features_DN: Array) -> Array:
    """Return the eigenvalues of M = H H^T / N, in ascending order.

    >>> eigenvalues(np.eye(2)).tolist()
    [0.5, 0.5]
    """
    return np.linalg.eigvalsh(features_DN @ features_DN.T / features_DN.shape[1])


def collapse_rate(features: int, gamma: float | None) -> float:
    """Return the rate at which a linear network without normalization loses rank: s_2^2 / s_1^2 ~ exp(-rate * layers).

    It is twice the gap between the first two Lyapunov exponents of products of N(0, 1) matrices. Without a residual
    path it is psi(d / 2) - psi((d - 1) / 2), near 1 / d (Newman 1986, The distribution of Lyapunov exponents); for I +
    gamma W with gamma^2 d << 1 it is 2 gamma^2 (Brownian motion of matrices). In between half their harmonic mean is up
    to a fifth too slow.

    Args:
        features: d, 2 at least.
        gamma: strength of the layers next to a residual path; None: no such path.

    >>> round(collapse_rate(32, None), 4)  # near 1 / 32
    0.0328
    """
    without = float(special.digamma(features / 2) - special.digamma((features - 1) / 2))
    return without if gamma is None else 1 / (1 / without + 1 / (2 * gamma**2))
