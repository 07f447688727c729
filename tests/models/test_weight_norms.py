"""Weight standardization: its formulas in numpy, what it does not depend on, and which layers have it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.models.weight_layers import RELU_GAIN, StandardizedWeight
from flbench.registry import NORMS
from tests.models.networks import images_for, small

FORMS: list[Any] = ["ws", {"name": "ws", "variant": "code"}, "ws-scaled", {"name": "ws-scaled", "learned": False}]


def standardized(norm: Any, weight: NDArray[np.float64], gain: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The formula, output by output."""
    out = np.empty_like(weight)
    for unit, w in enumerate(weight):
        n, mean = w.size, w.sum() / w.size
        squares = ((w - mean) ** 2).sum()
        if norm == "ws":
            out[unit] = (w - mean) / math.sqrt(squares / n + 1e-5)
        elif norm == {"name": "ws", "variant": "code"}:
            out[unit] = (w - mean) / (math.sqrt(squares / (n - 1)) + 1e-5)
        else:
            scale = math.sqrt(2 / (1 - 1 / math.pi)) / math.sqrt(max(squares, 1e-4))
            out[unit] = (1.0 if gain is None else gain[unit]) * scale * (w - mean)
    return out


@pytest.mark.parametrize("layers", ["conv", "all"])
@pytest.mark.parametrize("norm", FORMS, ids=str)
def test_the_network_is_the_plain_one_with_standardized_weights(norm: Any, layers: str) -> None:
    """In every layer but the head, shortcuts of blocks included, biases as they are."""
    form = {"name": norm} if isinstance(norm, str) else norm
    for model in ("cnn", "resnet18"):
        network, plain = (small(model, each, bias=True) for each in ({**form, "layers": layers}, "none"))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for leaf in network.parameters():
                leaf += 0.2 * torch.rand(leaf.shape, generator=generator, dtype=leaf.dtype)
            leaves = {name: leaf.numpy() for name, leaf in network.named_parameters()}
            for name, leaf in plain.named_parameters():
                own, fan_in = leaves[name], math.prod(leaf.shape[1:])
                chosen = leaf.dim() == 4 or (layers == "all" and leaf.dim() == 2)
                if chosen and not name.startswith("head") and fan_in > 1:
                    gain = leaves.get(f"{name.removesuffix('weight')}reparametrization.gain")
                    own = standardized(norm, own, gain)
                leaf.copy_(torch.from_numpy(own))
        images = images_for(model, 3)
        for ours, expected in zip(network(images), plain(images), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


def layer(norm: Any, shape: tuple[int, ...]) -> nn.Module:
    made = NORMS.parse({"name": norm, "layers": "all"} if isinstance(norm, str) else {**norm, "layers": "all"})
    module: nn.Module = made.weights(shape).double()
    return module


@pytest.mark.parametrize("shape", [(5, 3, 2, 2), (5, 12)], ids=str)
@pytest.mark.parametrize("norm", FORMS, ids=str)
def test_neither_shift_nor_scale_of_the_weights_counts(norm: Any, shape: tuple[int, ...]) -> None:
    """So the gradient of the weights is orthogonal to both; exactly for ws-scaled, up to eps for ws."""
    module, generator = layer(norm, shape), torch.Generator().manual_seed(0)
    weight, probe = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    each = (5, *[1] * (len(shape) - 1))
    shift, scale = torch.linspace(-3, 5, 5).double().view(each), torch.linspace(1, 30, 5).double().view(each)
    tolerance = 1e-12 if "scaled" in str(norm) else 1e-4
    torch.testing.assert_close(module(weight + shift), module(weight), rtol=0, atol=1e-12)
    torch.testing.assert_close(module(scale * weight), module(weight), rtol=tolerance, atol=tolerance)
    leaf = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((module(leaf) * probe).sum(), leaf)
    assert gradient.abs().max() > 0.01
    assert gradient.flatten(1).sum(1).abs().max() < 1e-12
    assert (gradient * weight).flatten(1).sum(1).abs().max() < tolerance


def test_scaled_weights_keep_the_variance_of_activations() -> None:
    """Of standard normal inputs every ReLU layer of 800 units has variance 1; the layer ``ws`` multiplies it by 800."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 800, generator=generator, dtype=torch.float64)
    for _ in range(4):
        weight = torch.rand(800, 800, generator=generator, dtype=torch.float64)
        grown = x @ layer("ws", (800, 800))(weight).T
        x = (x @ layer("ws-scaled", (800, 800))(weight).T).relu().detach()
        assert float(x.var(0).mean()) == pytest.approx(1, rel=0.1)
        assert float(grown.var(0).mean()) == pytest.approx(800, rel=0.1)
    assert pytest.approx(1.7139588594436646, rel=1e-3) == RELU_GAIN  # of the authors' code


@pytest.mark.parametrize("norm", ["ws", "ws-scaled"])
def test_equal_weights_have_finite_gradients(norm: str) -> None:
    """Not so in the variant ``code`` of ws: the derivative of a standard deviation at zero is infinite."""
    leaf = torch.full((2, 3), 0.5, dtype=torch.float64, requires_grad=True)
    out: Tensor = layer(norm, (2, 3))(leaf)
    (gradient,) = torch.autograd.grad((out * torch.arange(6.0).view(2, 3)).sum(), leaf)
    assert torch.equal(out, torch.zeros_like(out)) and torch.isfinite(gradient).all()


def test_almost_equal_weights_are_not_scaled_up() -> None:
    """The floor of the authors' code: the root of the sum of squares counts as 1/100 at least."""
    out = layer("ws-scaled", (1, 2))(torch.tensor([[0.5 + 3e-4, 0.5 - 3e-4]], dtype=torch.float64))
    expected = 1.7129 * 3e-4 / 1e-2
    torch.testing.assert_close(out, torch.tensor([[expected, -expected]], dtype=torch.float64), rtol=1e-4, atol=0)


def test_a_layer_with_one_weight_an_output_keeps_it() -> None:
    assert NORMS.parse("ws").weights((4, 1, 1, 1)) is None
    assert NORMS.parse("ws").weights((4, 12)) is None
    assert isinstance(NORMS.parse("gn-ws").weights((4, 2, 1, 1)), StandardizedWeight)


def test_group_normalization_follows_the_standardized_convolution() -> None:
    """conv, GN, ReLU; the statistics of the groups ignore a factor of the weights."""
    network = small("resnet18", "gn-ws")
    names = [name for name, _ in network.trunk.named_children()]
    assert names[:3] == ["conv1", "before1", "relu1"]
    seen: list[Tensor] = []
    network.get_submodule("trunk.before1").register_forward_hook(lambda _, inputs, out: seen.extend([*inputs, out]))
    network(images_for("resnet18", 3))
    x = seen[0].detach().numpy().reshape(3, 2, -1)
    expected = (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(seen[1].detach().numpy().reshape(3, 2, -1), expected, rtol=0, atol=1e-10)
