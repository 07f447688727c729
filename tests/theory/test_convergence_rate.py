"""How fast backward order parameters of real networks approach those of wide ones: as M^-q with q about 1/2.

Theorem 3.3 rests on it: mean subtraction leaves lambda_max of order M^(1 - 2 q*) to M^(1 - q*), q* = min(1/2, q)
(Karakida et al. 2019, section 3.2 and their figure S.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flbench.theory import fits
from flbench.theory.gaussian import RELU, TANH, Activation
from flbench.theory.order import order_parameters

WIDTHS, DRAWS = (25, 50, 100, 200, 400), 250

Array = np.ndarray[Any, Any]


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "sigma_w2", "sigma_b2"), [(RELU, 2.0, 0.0), (TANH, 3.0, 0.64)])
def test_the_rate_of_backward_order_parameters_is_one_half(
    activation: Activation, sigma_w2: float, sigma_b2: float
) -> None:
    """Mean deviations over 250 draws at five widths, in both hidden layers (here: q 0.50 to 0.51)."""
    expected = order_parameters(activation, sigma_w2=sigma_w2, sigma_b2=sigma_b2, layers=3).backward_st[:2]
    deviations_WL = np.array(
        [
            np.mean([np.abs(_overlaps(activation, sigma_w2, sigma_b2, m, seed) - expected) for seed in range(DRAWS)], 0)
            for m in WIDTHS
        ]
    )
    for deviations_W in deviations_WL.T:
        found = fits.exponent(WIDTHS, list(deviations_W))
        assert found.low is not None
        assert found.high is not None
        assert found.low < -0.5 < found.high
        assert found.value == pytest.approx(-0.5, abs=0.08)


def _overlaps(activation: Activation, sigma_w2: float, sigma_b2: float, width: int, seed: int) -> Array:
    """sum_i delta_i(s) delta_i(t) of two samples in layers 1 and 2 of a network of three."""
    generator = np.random.default_rng([seed, width])
    h: Array = generator.standard_normal((width, 2))
    weights, before = [], []
    for _ in range(2):
        weights.append(generator.standard_normal((width, width)) * np.sqrt(sigma_w2 / width))
        before.append(weights[-1] @ h + np.sqrt(sigma_b2) * generator.standard_normal((width, 1)))
        h = activation.value(before[-1])
    delta_2 = activation.slope(before[1]) * generator.standard_normal((width, 1)) * np.sqrt(sigma_w2 / width)
    delta_1 = activation.slope(before[0]) * (weights[1].T @ delta_2)
    return np.array([delta[:, 0] @ delta[:, 1] for delta in (delta_1, delta_2)])
