"""Order parameters against values of an independent implementation, and against wide random networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flbench.theory.gaussian import LINEAR, RELU, TANH, Activation
from flbench.theory.order import order_parameters

#: forward_t, forward_st, backward_t, backward_st, kappa1, kappa2 of three layers; computed elsewhere to 1e-10.
VALUES = {
    "relu (2, 0)": (
        (RELU, 2.0, 0.0),
        ((1, 1, 1), (0, 0.3183098862, 0.4937310902), (1, 1, 1), (0.3015576242, 0.6031152484, 1)),
        (1.5, 0.3428543181),
    ),
    "tanh (3, 0.64)": (
        (TANH, 3.0, 0.64),
        (
            (1, 0.6206008591, 0.5589446144),
            (0, 0.0924538811, 0.1809506781),
            (0.7622680508, 0.9504194758, 1),
            (0.2657142433, 0.6087366520, 1),
        ),
        (0.9555219042, 0.1186153721),
    ),
    "relu (4, 1)": (
        (RELU, 4.0, 1.0),
        ((1, 2.5, 5.5), (0, 1.0617439097, 3.2656784700), (4, 2, 1), (1.4853165516, 1.3165500614, 1)),
        (7.25, 2.3317587397),
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_order_parameters_of_known_networks(case: str) -> None:
    (activation, sigma_w2, sigma_b2), parameters, kappas = VALUES[case]
    found = order_parameters(activation, sigma_w2=sigma_w2, sigma_b2=sigma_b2, layers=3)
    names = ("forward_t", "forward_st", "backward_t", "backward_st")
    for name, expected in zip(names, parameters, strict=True):
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-10, err_msg=name)
    assert found.kappas().alpha == 2
    np.testing.assert_allclose((found.kappas().kappa1, found.kappas().kappa2), kappas, atol=1e-10)


def test_a_centered_linear_network_has_no_overlap() -> None:
    found = order_parameters(LINEAR, sigma_w2=1.0, sigma_b2=0.0, layers=4)
    assert found.forward_st == (0, 0, 0, 0)
    assert found.kappas().kappa2 == 0
    assert found.kappas().kappa1 == pytest.approx(4 / 3)  # L layers of 1 each, over alpha = L - 1


def test_unequal_widths_weigh_the_layer_before() -> None:
    kappas = order_parameters(RELU, sigma_w2=2.0, sigma_b2=0.0, layers=3).kappas([0.5, 1, 2])
    assert kappas.alpha == 0.5 * 1 + 1 * 2
    by_hand = (0.5 * 0.3015576242 * 0 + 1 * 0.6031152484 * 0.3183098862 + 2 * 1 * 0.4937310902) / 2.5
    assert kappas.kappa2 == pytest.approx(by_hand, abs=1e-9)
    with pytest.raises(ValueError, match="layers 0 to 2"):
        order_parameters(RELU, sigma_w2=2.0, sigma_b2=0.0, layers=3).kappas([1, 1])


@pytest.mark.parametrize(("activation", "kappa1", "kappa2"), [(RELU, 0.75, 0.171427), (TANH, 0.4941, 0.1053)])
def test_layer_normalization_has_other_order_parameters(activation: Activation, kappa1: float, kappa2: float) -> None:
    sigma_w2, sigma_b2 = {"relu": (2.0, 0.0), "tanh": (3.0, 0.64)}[activation.name]
    found = order_parameters(activation, sigma_w2=sigma_w2, sigma_b2=sigma_b2, layers=3, layer_norm=True).kappas()
    assert found.kappa1 == pytest.approx(kappa1, abs=5e-5)
    assert found.kappa2 == pytest.approx(kappa2, abs=5e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(("activation", "sigma_w2", "sigma_b2"), [(RELU, 2.0, 0.0), (TANH, 3.0, 0.64)])
def test_a_wide_network_has_the_predicted_order_parameters(
    activation: Activation, sigma_w2: float, sigma_b2: float
) -> None:
    """Two samples in networks of width 2,000, with backward signals by the chain rule; 20 draws."""
    theory = order_parameters(activation, sigma_w2=sigma_w2, sigma_b2=sigma_b2, layers=3)
    drawn = np.array([measured(activation, sigma_w2, sigma_b2, seed, 2000) for seed in range(20)])
    expected = [*theory.forward_t[1:], *theory.forward_st[1:], *theory.backward_t[:2], *theory.backward_st[:2]]
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - expected), 4.5 * error + 2e-3)


def measured(activation: Activation, sigma_w2: float, sigma_b2: float, seed: int, width: int) -> np.ndarray[Any, Any]:
    """The order parameters of layers 1 and 2 of a network of three: forward t, st, backward t, st."""
    generator = np.random.default_rng([seed, width])
    h: np.ndarray[Any, Any] = generator.standard_normal((width, 2), dtype=np.float32)
    weights, before, after = [], [], []
    for _ in range(2):
        weights.append(generator.standard_normal((width, width), dtype=np.float32) * np.sqrt(sigma_w2 / width))
        before.append(weights[-1] @ h + np.sqrt(sigma_b2) * generator.standard_normal((width, 1), dtype=np.float32))
        h = activation.value(before[-1])
        after.append(h)
    readout = generator.standard_normal((width, 1), dtype=np.float32) * np.sqrt(sigma_w2 / width)
    delta_2 = activation.slope(before[1]) * readout
    delta_1 = activation.slope(before[0]) * (weights[1].T @ delta_2)
    forward = [h.T @ h / width for h in after]
    backward = [delta.T @ delta for delta in (delta_1, delta_2)]
    return np.array([gram[at] for grams in (forward, backward) for at in ((0, 0), (0, 1)) for gram in grams])
