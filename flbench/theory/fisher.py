"""Eigenvalues of the Fisher information F = sum_k E[grad f_k grad f_k^T] of wide random networks.

Karakida, Akaho, Amari 2019, The Normalization Method for Alleviating Pathological Sharpness in Wide Neural Networks:
theorems 2.2, 3.3, 3.4 and 4.1 and eq. 19. M is the width, T the number of samples, C that of outputs, rho = M / T.
Bounds leave out the paper's unspecified constants c_1, c_2 >= 0 (so that lower bounds stay lower bounds).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

from flbench.theory.gaussian import Activation, Array
from flbench.theory.order import Kappas


def mean_eigenvalue(kappas: Kappas, *, width: int, outputs: int = 1) -> float:
    """Return m_lambda ~ kappa_1 C / M (eq. 10).

    >>> mean_eigenvalue(Kappas(alpha=2.0, kappa1=1.5, kappa2=0.34), width=100)
    0.015
    """
    return kappas.kappa1 * outputs / width


def largest(kappas: Kappas, *, width: int, samples: int) -> float:
    """Return lambda_max ~ alpha ((T-1)/T kappa_2 + kappa_1/T) M without normalization (theorem 2.2, eq. 10).

    >>> round(largest(Kappas(alpha=2.0, kappa1=1.5, kappa2=0.34), width=1000, samples=1000), 2)
    682.32
    """
    return kappas.alpha * ((samples - 1) / samples * kappas.kappa2 + kappas.kappa1 / samples) * width


@dataclass(frozen=True)
class Bounds:
    """A lower and an upper bound of an eigenvalue."""

    lower: float
    upper: float


def mean_with_mean_subtraction(kappas: Kappas, *, width: int, samples: int, outputs: int = 1) -> float:
    """Return m_lambda ~ (1 - 1/T) (kappa_1 - kappa_2) C / M, outputs' means subtracted (theorem 3.3, eq. 16)."""
    return (1 - 1 / samples) * (kappas.kappa1 - kappas.kappa2) * outputs / width


def largest_with_mean_subtraction_of_few(kappas: Kappas, *, width: int, samples: int) -> float:
    """Return lambda_max ~ alpha (kappa_1 - kappa_2) M / T for 2 <= T = O(1) (theorem 3.3 i, eq. 17)."""
    if samples < 2:
        raise ValueError(f"at least two samples have a mean to subtract, got {samples}")
    return kappas.alpha * (kappas.kappa1 - kappas.kappa2) * width / samples


def bounds_with_mean_subtraction(kappas: Kappas, *, width: int, samples: int, outputs: int = 1) -> Bounds:
    """Return bounds of lambda_max for T = O(M) (theorem 3.3 ii, eq. 18).

    From rho alpha (kappa_1 - kappa_2) to sqrt(C alpha^2 rho (kappa_1 - kappa_2)^2 M).

    >>> bounds_with_mean_subtraction(Kappas(alpha=2.0, kappa1=1.5, kappa2=0.5), width=100, samples=100)
    Bounds(lower=2.0, upper=20.0)
    """
    rho, step = width / samples, kappas.alpha * (kappas.kappa1 - kappas.kappa2)
    return Bounds(rho * step, step * float(np.sqrt(outputs * rho * width)))


def bounds_with_last_batch_norm(kappas: Kappas, sigmas_C: Array, *, width: int, samples: int) -> Bounds:
    """Return these bounds where outputs are also divided by their standard deviations sigma_k over samples (eq. 19).

    Q_1 = sum_k sigma_k^-2, Q_2 = sum_k sigma_k^-4; rho alpha Q_2/Q_1 (kappa_1 - kappa_2) from below.
    """
    q1, q2 = float(np.sum(sigmas_C**-2.0)), float(np.sum(sigmas_C**-4.0))
    rho, step = width / samples, kappas.alpha * (kappas.kappa1 - kappas.kappa2)
    return Bounds(rho * step * q2 / q1, step * float(np.sqrt(q2 * rho * width)))


def mean_with_last_batch_norm(kappas: Kappas, sigmas_C: Array, *, width: int) -> float:
    """Return m_lambda ~ Q_1 (kappa_1 - kappa_2) / M (eq. 19)."""
    return float(np.sum(sigmas_C**-2.0)) * (kappas.kappa1 - kappas.kappa2) / width


def least_with_middle_batch_norm(activation: Activation, *, width: int, samples: int) -> float:
    """Return a lower bound of lambda_max with batch norm in all layers but the last (theorem 3.4, eq. 22).

    It is ((T-1)/T q_st + q_t/T) M at equal widths. A batch of T normalized Gaussian pre-activations has variance 1 and
    correlations -1/(T-1), so q_t = E phi(z)^2 and q_st = E phi(z) phi(z') at that correlation; for ReLU 1/2 and
    J(-1/(T-1))/2.

    Raises:
        ValueError: phi has negative values, for which the theorem does not hold (for tanh the claim is false, too).
    """
    if not activation.non_negative:
        raise ValueError(f"theorem 3.4 needs a non-negative activation, and {activation.name} is not")
    q_t, q_st = activation.square(1.0), activation.product(1.0, -1 / (samples - 1))
    return ((samples - 1) / samples * q_st + q_t / samples) * width


@dataclass(frozen=True)
class LayerNormConstants:
    """eta_1, eta_2 and eta_3^2 of theorem 4.1, from a network's outputs.

    For C = 3 outputs eta_1 diverges logarithmically, and eta_2 needs C >= 6: averages over few samples are unreliable.
    """

    eta1: float
    eta2: float
    eta3_squared: float

    @classmethod
    def of(cls, outputs_TC: Array) -> LayerNormConstants:
        """Return the constants of outputs before the last layer's normalization.

        sigma_t is a sample's standard deviation over outputs, f_t its normalized outputs: eta_1 = E[sigma^-2],
        eta_2 = E[sigma^-4], eta_3^2 = E_st[(f_s . f_t / C)^2 / (sigma_s^2 sigma_t^2)].
        """
        sigma_T, f_TC = _normalized(outputs_TC)
        overlaps_TT = f_TC @ f_TC.T / outputs_TC.shape[1]
        inverse_T = sigma_T**-2.0
        return cls(
            eta1=float(inverse_T.mean()),
            eta2=float((inverse_T**2).mean()),
            eta3_squared=float((overlaps_TT**2 * inverse_T[:, None] * inverse_T).mean()),
        )


def bounds_with_layer_norm(
    kappas: Kappas, constants: LayerNormConstants, *, width: int, samples: int, outputs: int
) -> Bounds:
    """Return bounds of lambda_max with layer norm everywhere (theorem 4.1, eqs. 26 and 27).

    From alpha s M / ((C-2) eta_1 kappa_1') to alpha sqrt(s) M, with the kappas of ``order.layer_normalized``.

    Raises:
        ValueError: with C <= 2 outputs the Fisher information is zero.
    """
    _needs_three(outputs)
    c, t = outputs - 2, samples
    eta1, eta2 = constants.eta1, constants.eta2
    of_kappa2 = ((constants.eta3_squared - eta1**2) * t + c * (eta1**2 * t - eta2)) / t
    s = of_kappa2 * kappas.kappa2**2 + c * eta2 * kappas.kappa1**2 / t
    return Bounds(kappas.alpha * s * width / (c * eta1 * kappas.kappa1), kappas.alpha * float(np.sqrt(s)) * width)


def mean_with_layer_norm(kappas: Kappas, constants: LayerNormConstants, *, width: int, outputs: int) -> float:
    """Return m_lambda ~ (C - 2) eta_1 kappa_1' / M (eq. 26)."""
    _needs_three(outputs)
    return (outputs - 2) * constants.eta1 * kappas.kappa1 / width


def largest_with_layer_norm(kappas: Kappas, outputs_TC: Array, *, width: int) -> float:
    """Return the mean-field value of lambda_max with layer norm everywhere, for these outputs (not in the paper).

    The top eigenvalue of (alpha M / T) [kappa_2' B B^T + (kappa_1' - kappa_2') blockdiag(A_t^2)], where B stacks the
    last normalization's Jacobians A_t = (I - 1 1^T / C - f_t f_t^T / C) / sigma_t. It is between theorem 4.1's bounds
    and follows measured values network by network.
    """
    samples, outputs = outputs_TC.shape
    _needs_three(outputs)
    sigma_T, f_TC = _normalized(outputs_TC)
    plane = np.eye(outputs) - 1 / outputs
    jacobians_TCC: Array = (plane - f_TC[:, :, None] * f_TC[:, None, :] / outputs) / sigma_T[:, None, None]

    def product(v: Array) -> Array:
        once_TC = np.einsum("tcd,td->tc", jacobians_TCC, v.reshape(samples, outputs))
        mixed_TC = kappas.kappa2 * once_TC.sum(0) + (kappas.kappa1 - kappas.kappa2) * once_TC
        image: Array = np.einsum("tcd,td->tc", jacobians_TCC, mixed_TC).reshape(-1)
        return image

    rows = samples * outputs
    operator = LinearOperator((rows, rows), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(rows)  # the same answer every time
    top = eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0]
    return float(kappas.alpha * width / samples * top)


def _normalized(outputs_TC: Array) -> tuple[Array, Array]:
    """Return each sample's standard deviation over outputs, and its normalized outputs."""
    sigma_T = outputs_TC.std(axis=1)
    return sigma_T, (outputs_TC - outputs_TC.mean(axis=1, keepdims=True)) / sigma_T[:, None]


def _needs_three(outputs: int) -> None:
    if outputs <= 2:
        raise ValueError(f"with {outputs} layer-normalized outputs the Fisher information is zero; use at least 3")
