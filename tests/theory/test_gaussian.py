"""Gaussian averages: quadrature against closed forms, and both against samples."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.theory.gaussian import ACTIVATIONS, LINEAR, RELU, TANH, Activation, arccosine

POINTS = [(1.0, 0.0), (1.0, 0.3), (2.0, -0.7), (5.5, 0.99), (0.4, -0.999), (1.0, 1.0), (3.0, -1.0)]


@pytest.mark.parametrize(("q", "c"), POINTS)
@pytest.mark.parametrize("closed", [RELU, LINEAR], ids=lambda activation: activation.name)
def test_quadrature_agrees_with_closed_forms(closed: Activation, q: float, c: float) -> None:
    numeric = Activation(closed.name, closed.value, closed.slope, closed.kinks)
    assert numeric.square(q) == pytest.approx(closed.square(q), abs=1e-12)
    assert numeric.product(q, c) == pytest.approx(closed.product(q, c), abs=1e-12)
    assert numeric.slope_square(q) == pytest.approx(closed.slope_square(q), abs=1e-12)
    assert numeric.slope_product(q, c) == pytest.approx(closed.slope_product(q, c), abs=1e-12)


def test_quadrature_agrees_with_the_closed_form_of_erf() -> None:
    """E erf(u) erf(v) = 2/pi arcsin(2 c q / (1 + 2 q)) (Williams 1997)."""
    erf = ACTIVATIONS["erf"]
    for q, c in POINTS:
        assert erf.product(q, c) == pytest.approx(2 / np.pi * np.arcsin(2 * c * q / (1 + 2 * q)), abs=1e-12)


def test_a_kink_away_from_zero_is_found() -> None:
    """E max(u - 1, 0) = density(1) - (1 - cdf(1)) for a standard normal u."""
    shifted = Activation("shifted", lambda u: np.sqrt(np.maximum(u - 1, 0)), lambda u: np.zeros_like(u), (1.0,))
    assert shifted.square(1.0) == pytest.approx(0.08331547058768628, abs=1e-12)


def test_arccosine_kernel() -> None:
    assert arccosine(1) == 1
    assert arccosine(0) == pytest.approx(1 / np.pi, abs=1e-15)
    assert arccosine(-1) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=lambda activation: activation.name)
def test_averages_are_those_of_a_million_samples(activation: Activation) -> None:
    n, q, c = 1_000_000, 1.7, 0.4
    x, y = np.random.default_rng(0).standard_normal((2, n))
    u, v = np.sqrt(q) * x, np.sqrt(q) * (c * x + np.sqrt(1 - c * c) * y)
    averages = {
        "square": (activation.value(u) ** 2, activation.square(q)),
        "product": (activation.value(u) * activation.value(v), activation.product(q, c)),
        "slope_square": (activation.slope(u) ** 2, activation.slope_square(q)),
        "slope_product": (activation.slope(u) * activation.slope(v), activation.slope_product(q, c)),
    }
    for name, (sampled, exact) in averages.items():
        assert abs(sampled.mean() - exact) <= 4.5 * sampled.std() / np.sqrt(n) + 1e-12, name


def test_slopes_are_derivatives() -> None:
    u = np.array([-2.3, -0.4, 0.1, 1.7])
    for activation in ACTIVATIONS.values():
        step = 1e-6
        differences = (activation.value(u + step) - activation.value(u - step)) / (2 * step)
        np.testing.assert_allclose(activation.slope(u), differences, atol=1e-8)


def test_tanh_needs_more_than_forty_hermite_nodes() -> None:
    """Why the averages are not Gauss-Hermite sums: at 40 nodes tanh'^2 is off by more than a percent."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    q = 3.64
    hermite = float(np.sum(weights * TANH.slope(np.sqrt(q) * nodes) ** 2) / np.sqrt(2 * np.pi))
    assert abs(hermite / TANH.slope_square(q) - 1) > 0.01
