"""Convolution, pooling and ReLU by hand: torch's own numbers and gradients, also where pixels of a window are equal."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from flbench.models.layers import PooledConv
from flbench.models.narrow_convolutions import pooled_relu, slow_pooled_relu
from flbench.registry import MODELS, NORMS


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("channels", "out"), [(1, 6), (3, 5), (6, 16), (1, 32)])
def test_as_torch(channels: int, out: int) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        for bias, (padding, pool) in product((True, False), ((0, 2), (2, 2), (1, 3))):
            check_as_torch(channels, out, layout, bias, padding, pool)


def check_as_torch(channels: int, out: int, layout: torch.memory_format, bias: bool, padding: int, pool: int) -> None:
    x = random(4, channels, 13, 10)
    x[1, :, :7] = 0  # equal pixels: the first of a window gets the gradient
    leaves = [x, random(out, channels, 5, 5), random(out)]
    leaves = [leaf.contiguous(memory_format=layout) if leaf.dim() == 4 else leaf for leaf in leaves][: 2 + bias]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    arguments = leaves if bias else [*leaves, None]
    expected, found = slow_pooled_relu(*arguments, padding, pool), pooled_relu(*arguments, padding, pool)
    assert found.is_contiguous(memory_format=torch.channels_last)
    towards = random(*expected.shape)
    pairs = zip(*(torch.autograd.grad(each, leaves, towards) for each in (found, expected)), strict=True)
    for one, other in [(found, expected), *pairs]:
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("out", [3, 16])
def test_gradients_have_gradients(out: int) -> None:
    """The sharpness probe differentiates twice."""
    x, *leaves = random(2, 2, 8, 8), random(out, 2, 3, 3).requires_grad_(), random(out).requires_grad_()

    def twice(function: object) -> tuple[Tensor, ...]:
        loss = function(x, *leaves, 0, 2).square().sum()  # type: ignore[operator]
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(leaf.square().sum() for leaf in first), leaves)

    for one, other in zip(twice(pooled_relu), twice(slow_pooled_relu), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize(("norm", "narrow"), [("none", 2), ("fn", 2), ("gn", 0), ("ln-before", 0), ("ws", 0)])
def test_norms_between_the_parts_separate_them(norm: str, narrow: int) -> None:
    network = MODELS.parse("lenet").build((1, 28, 28), 10, NORMS.parse(norm), True)
    assert sum(isinstance(layer, PooledConv) for layer in network.modules()) == narrow


def test_a_layer_by_hand_and_by_torch() -> None:
    layer, x = PooledConv(2, 4, 3, padding=0, pool=2, bias=True).double(), random(3, 2, 9, 9)
    results = []
    for layer.by_hand in (True, False):
        results.append((layer(x), *torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))))
    assert isinstance(layer, nn.Conv2d)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
