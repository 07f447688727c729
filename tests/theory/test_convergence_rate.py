"""How fast backward order parameters of real networks approach those of wide ones: as M^-q with q about 1/2.

Theorem 3.3 rests on it: mean subtraction leaves lambda_max of order M^(1 - 2 q*) to M^(1 - q*), q* = min(1/2, q)
(Karakida et al. 2019, section 3.2 and their figure S.1).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flbench.theory.gaussian import RELU, TANH, Activation
from flbench.theory.order import order_parameters
from tests.theory.test_order import measured

WIDTHS, DRAWS = (25, 50, 100, 200, 400), 250


@pytest.mark.nightly
@pytest.mark.parametrize(("activation", "sigma_w2", "sigma_b2"), [(RELU, 2.0, 0.0), (TANH, 3.0, 0.64)])
def test_the_rate_of_backward_order_parameters_is_one_half(
    activation: Activation, sigma_w2: float, sigma_b2: float
) -> None:
    """Mean deviations over 250 draws at five widths, in both hidden layers (here: q 0.50 to 0.51)."""
    expected = order_parameters(activation, sigma_w2=sigma_w2, sigma_b2=sigma_b2, layers=3).backward_st[:2]
    deviations_WL = np.array(
        [
            np.mean(
                [np.abs(measured(activation, sigma_w2, sigma_b2, seed, m)[-2:] - expected) for seed in range(DRAWS)], 0
            )
            for m in WIDTHS
        ]
    )
    for deviations_W in deviations_WL.T:
        found = stats.linregress(np.log(WIDTHS), np.log(deviations_W))
        assert abs(found.slope + 0.5) < stats.t.ppf(0.975, len(WIDTHS) - 2) * found.stderr
        assert found.slope == pytest.approx(-0.5, abs=0.08)
