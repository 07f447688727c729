"""Predicted eigenvalues: the formulas against hand computation and an independent implementation's values."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.theory import fisher
from flbench.theory.gaussian import RELU, SIGMOID, TANH, arccosine
from flbench.theory.order import Kappas, order_parameters

RELU_20 = order_parameters(RELU, sigma_w2=2.0, sigma_b2=0.0, layers=3).kappas()
TANH_364 = order_parameters(TANH, sigma_w2=3.0, sigma_b2=0.64, layers=3).kappas()
RELU_41 = order_parameters(RELU, sigma_w2=4.0, sigma_b2=1.0, layers=3).kappas()


@pytest.mark.parametrize(
    ("kappas", "at_100", "at_1600", "bound"),
    [(RELU_20, 70.89, 1099.45, 2.314), (TANH_364, 25.40, 381.24, 1.674), (RELU_41, 476.2, None, 9.836)],
)
def test_figure_1(kappas: Kappas, at_100: float, at_1600: float | None, bound: float) -> None:
    assert fisher.largest(kappas, width=100, samples=100) == pytest.approx(at_100, abs=0.05)
    if at_1600 is not None:
        assert fisher.largest(kappas, width=1600, samples=1600) == pytest.approx(at_1600, abs=0.005)
    assert fisher.bounds_with_mean_subtraction(kappas, width=400, samples=400).lower == pytest.approx(bound, abs=1e-3)


@pytest.mark.parametrize(("kappas", "theory"), [(RELU_20, 1.5), (TANH_364, 0.9555219042)])
def test_mean_eigenvalue(kappas: Kappas, theory: float) -> None:
    assert fisher.mean_eigenvalue(kappas, width=400, outputs=3) * 400 == pytest.approx(3 * theory)
    subtracted = fisher.mean_with_mean_subtraction(kappas, width=400, samples=5, outputs=3)
    assert subtracted == pytest.approx(0.8 * 3 * (kappas.kappa1 - kappas.kappa2) / 400)


def test_widths_that_differ() -> None:
    relu = order_parameters(RELU, sigma_w2=2.0, sigma_b2=0.0, layers=3).kappas([0.5, 1, 2])
    tanh = order_parameters(TANH, sigma_w2=3.0, sigma_b2=0.64, layers=3).kappas([1, 2, 0.5])
    assert fisher.largest(relu, width=400, samples=400) == pytest.approx(474.1, abs=0.05)
    assert fisher.largest(tanh, width=400, samples=400) == pytest.approx(83.2, abs=0.05)


def test_the_learning_rate_line_of_figure_2() -> None:
    assert 2 / fisher.largest(RELU_41, width=100, samples=1000) == pytest.approx(0.42797 / 100, rel=1e-4)


def test_mean_subtraction_of_few_samples_changes_only_a_coefficient() -> None:
    few = fisher.largest_with_mean_subtraction_of_few(RELU_20, width=1600, samples=2)
    assert few == pytest.approx(2 * (1.5 - 0.3428543181) * 800)
    with pytest.raises(ValueError, match="at least two"):
        fisher.largest_with_mean_subtraction_of_few(RELU_20, width=1600, samples=1)


def test_upper_bound_of_mean_subtraction_grows_with_the_root_of_the_width() -> None:
    bounds = [fisher.bounds_with_mean_subtraction(RELU_20, width=m, samples=m, outputs=4) for m in (100, 400)]
    assert bounds[0].lower == bounds[1].lower
    assert bounds[1].upper == pytest.approx(2 * bounds[0].upper)
    assert bounds[0].upper == pytest.approx(2 * (1.5 - 0.3428543181) * np.sqrt(4 * 100))


def test_batch_norm_of_the_last_layer_scales_by_the_outputs_deviations() -> None:
    sigmas = np.array([0.5, 2.0])
    bounds = fisher.bounds_with_last_batch_norm(RELU_20, sigmas, width=300, samples=100)
    assert bounds.lower == pytest.approx(3 * RELU_20.alpha * (RELU_20.kappa1 - RELU_20.kappa2) * (16.0625 / 4.25))
    same = fisher.bounds_with_last_batch_norm(RELU_20, np.ones(1), width=300, samples=100)
    assert same == fisher.bounds_with_mean_subtraction(RELU_20, width=300, samples=100)
    mean = fisher.mean_with_last_batch_norm(RELU_20, sigmas, width=300)
    assert mean == pytest.approx(4.25 * (RELU_20.kappa1 - RELU_20.kappa2) / 300)


@pytest.mark.parametrize(("width", "bound"), [(50, 8.05), (100, 16.01), (200, 31.92), (400, 63.75), (800, 127.4)])
def test_batch_norm_in_the_middle_leaves_the_order_of_the_width(width: int, bound: float) -> None:
    assert fisher.least_with_middle_batch_norm(RELU, width=width, samples=width) == pytest.approx(bound, abs=0.05)


def test_middle_batch_norm_of_other_activations() -> None:
    by_hand = ((99 / 100) * arccosine(-1 / 99) / 2 + 0.5 / 100) * 100
    assert fisher.least_with_middle_batch_norm(RELU, width=100, samples=100) == pytest.approx(by_hand)
    assert fisher.least_with_middle_batch_norm(SIGMOID, width=100, samples=100) > 20  # (1/2)^2 M and a little more
    with pytest.raises(ValueError, match="non-negative"):
        fisher.least_with_middle_batch_norm(TANH, width=100, samples=100)


def outputs(samples: int = 30, count: int = 10) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((samples, count))


def test_layer_norm_constants_by_hand() -> None:
    """Two samples of three outputs, whose standard deviations are sqrt(2/3) and 2 sqrt(2/3)."""
    found = fisher.LayerNormConstants.of(np.array([[1.0, 0.0, -1.0], [-2.0, 2.0, 0.0]]))
    inverse = np.array([3 / 2, 3 / 8])
    overlap = np.array([[1, -0.5], [-0.5, 1]])
    assert found.eta1 == pytest.approx(inverse.mean())
    assert found.eta2 == pytest.approx((inverse**2).mean())
    assert found.eta3_squared == pytest.approx((overlap**2 * np.outer(inverse, inverse)).mean())


def test_the_mean_field_value_is_between_the_layer_norm_bounds() -> None:
    kappas, drawn = order_parameters(RELU, sigma_w2=2.0, sigma_b2=0.0, layers=3, layer_norm=True).kappas(), outputs()
    constants = fisher.LayerNormConstants.of(drawn)
    bounds = fisher.bounds_with_layer_norm(kappas, constants, width=100, samples=30, outputs=10)
    value = fisher.largest_with_layer_norm(kappas, drawn, width=100)
    assert bounds.lower < value < bounds.upper


def test_layer_norm_moments_are_those_of_the_mean_field_matrix() -> None:
    """With one sample and equal kappas the matrix is a projection of rank C - 2 over sigma^2; the mean is eq. 26."""
    kappas, drawn = Kappas(alpha=2.0, kappa1=0.75, kappa2=0.75), outputs(count=4)
    constants = fisher.LayerNormConstants.of(drawn)
    one_sample = fisher.largest_with_layer_norm(kappas, drawn[:1], width=100)
    sigma = drawn[0].std()
    assert one_sample == pytest.approx(2.0 * 100 * 0.75 / sigma**2)
    mean = fisher.mean_with_layer_norm(kappas, constants, width=100, outputs=4)
    assert mean == pytest.approx(2 * constants.eta1 * 0.75 / 100)


@pytest.mark.parametrize("count", [1, 2])
def test_two_layer_normalized_outputs_have_no_information(count: int) -> None:
    kappas = Kappas(2.0, 0.75, 0.2)
    with pytest.raises(ValueError, match="zero"):
        fisher.largest_with_layer_norm(kappas, outputs(count=count), width=10)
    with pytest.raises(ValueError, match="zero"):
        fisher.mean_with_layer_norm(kappas, fisher.LayerNormConstants(1, 1, 1), width=10, outputs=count)
