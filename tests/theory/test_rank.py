"""Ranks of given spectra."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.theory import rank


def test_effective_rank_of_known_spectra() -> None:
    assert rank.effective_rank(np.ones(7)) == pytest.approx(7)
    assert rank.effective_rank(np.array([0.0, 0.0, 3.0])) == pytest.approx(1)
    assert rank.effective_rank(np.array([1.0, 2.0])) == pytest.approx(9 / 5)
    assert rank.effective_rank(np.array([1.0, 2.0]) * 1e-200) == pytest.approx(9 / 5), "no scale matters"
    assert rank.effective_rank(np.array([1.0, 2.0]) * 1e200) == pytest.approx(9 / 5)


def test_soft_rank_counts_against_the_mean() -> None:
    spectrum = np.array([0.1, 0.4, 0.6, 2.9])  # mean 1
    assert [rank.soft_rank(spectrum, tau) for tau in (0.05, 0.3, 0.5, 1.0)] == [4, 3, 2, 1]
    assert rank.soft_rank(1e6 * spectrum) == rank.soft_rank(spectrum) == 2


def test_soft_rank_is_bounded_by_the_effective_rank() -> None:
    """rank_tau >= (1 - tau)^2 r (Paley and Zygmund), on 1,000 random spectra."""
    generator = np.random.default_rng(0)
    for _ in range(1000):
        spectrum = generator.gamma(generator.uniform(0.05, 2), size=generator.integers(2, 40))
        tau = generator.uniform(0, 1)
        assert rank.soft_rank(spectrum, tau) >= (1 - tau) ** 2 * rank.effective_rank(spectrum) - 1e-9


def test_eigenvalues_of_features() -> None:
    features = np.array([[1.0, -1.0, 1.0, -1.0], [2.0, 2.0, -2.0, -2.0]])
    np.testing.assert_allclose(rank.eigenvalues(features), [1, 4])


def test_the_rate_of_collapse_is_the_gap_of_the_first_two_lyapunov_exponents() -> None:
    """400 products of 400 matrices of width 12, reorthogonalized: the two limits, and loosely the way between them."""
    slacks = {None: 0.03, 0.05: 0.05, 0.3: 0.25, 1.0: 0.05}
    chains, features, layers = 400, 12, 400
    generator, start = np.random.default_rng(0), np.broadcast_to(np.eye(features)[:, :2], (chains, features, 2))
    frames, gaps = dict.fromkeys(slacks, start), dict.fromkeys(slacks, 0.0)
    for _ in range(layers):
        matrices = generator.standard_normal((chains, features, features))
        for gamma, before in frames.items():
            signal = matrices @ before
            first, second = np.moveaxis(signal if gamma is None else before + gamma * signal, -1, 0)
            length = np.linalg.norm(first, axis=1, keepdims=True)
            first = first / length
            second = second - (first * second).sum(axis=1, keepdims=True) * first
            rest = np.linalg.norm(second, axis=1, keepdims=True)
            gaps[gamma] += np.log(length / rest).mean()
            frames[gamma] = np.stack([first, second / rest], axis=-1)
    for gamma, slack in slacks.items():
        assert 2 * gaps[gamma] / layers == pytest.approx(rank.collapse_rate(features, gamma), rel=slack)
