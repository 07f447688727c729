"""Ways to convolve a stack of clients: the same numbers, forward and backward, as one client after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.models.convolutions import CONVOLUTIONS, has_pixels_last, pixels_last, window_numbers
from flbench.models.layers import Conv, Pool


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def passes(way: str, x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, ...]:
    """Output, and both gradients of a weighted sum of it."""
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    window = (stride, stride), (padding, padding)
    if way == "one by one":
        out = torch.stack([F.conv2d(*pair, None, *window) for pair in zip(*leaves, strict=True)])
    else:
        out = CONVOLUTIONS[way](*leaves, *window)
    return out, *torch.autograd.grad(out, leaves, random(*out.shape))


#: Kernels, strides and paddings. The last kernel does not reach the last pixels, and lies on padding alone.
WINDOWS = [(5, 1, 0), (3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (4, 3, 0), (2, 3, 2)]


@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_all_ways_agree(way: str, kernel: int, stride: int, padding: int) -> None:
    x, weight = random(3, 4, 2, 7, 9), random(3, 5, 2, kernel, kernel)
    expected = passes("one by one", x, weight, stride, padding)
    for one, other in zip(passes(way, x, weight, stride, padding), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_images_need_no_gradient(way: str) -> None:
    x, weight = random(2, 3, 1, 5, 5), random(2, 4, 1, 3, 3).requires_grad_()
    plain = torch.stack([F.conv2d(*pair) for pair in zip(x, weight, strict=True)])
    out = CONVOLUTIONS[way](x, weight, (1, 1), (0, 0))
    found, expected = (torch.autograd.grad(each.sum(), weight)[0] for each in (out, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_a_layer_convolves_in_the_chosen_way(way: str, bias: bool) -> None:
    layer = Conv(2, 3, 3, stride=2, padding=1, bias=bias).double()
    weight, x = random(4, 3, 2, 3, 3), random(4, 2, 2, 6, 6)
    own_bias = random(4, 3) if bias else None
    expected = torch.stack(
        [F.conv2d(x[k], weight[k], None if own_bias is None else own_bias[k], 2, 1) for k in range(4)]
    )
    layer.stacked_as = way
    layer._parameters["weight"] = weight  # type: ignore[assignment]
    layer._parameters["bias"] = own_bias  # type: ignore[assignment]
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_mixed_precision_reaches_every_way(way: str) -> None:
    layer = Conv(2, 3, 3, bias=True)
    layer.stacked_as = way
    weight = random(2, 3, 2, 3, 3).float().requires_grad_()
    layer._parameters["weight"] = weight  # type: ignore[assignment]
    layer._parameters["bias"] = random(2, 3).float()  # type: ignore[assignment]
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        out = layer(random(2, 4, 2, 6, 6).float())
    assert out.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(out.float().sum(), weight)
    assert gradient.dtype == torch.float32


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_a_stack_keeps_its_layout_from_one_layer_to_the_next(way: str, channels: int) -> None:
    """Convolution, pooling and ReLU of images with the pixels last, with the numbers of the other layout."""
    first, second, pool = Conv(channels, 4, 3, bias=False), Conv(4, 5, 2, bias=False), Pool(2)
    first.stacked_as = second.stacked_as = way
    weights, x = (random(3, 4, channels, 3, 3), random(3, 5, 4, 2, 2)), random(3, 2, channels, 12, 12)

    def passes(lay: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        leaves = [lay(leaf).requires_grad_() for leaf in weights]
        for layer, leaf in zip((first, second), leaves, strict=True):
            layer._parameters["weight"] = leaf  # type: ignore[assignment]
        out = F.relu(pool(second(F.relu(pool(first(lay(x)))))))
        return out, *torch.autograd.grad(out, leaves, random(*out.shape))

    expected, found = passes(torch.clone), passes(pixels_last)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert has_pixels_last(found[0])
    assert has_pixels_last(expected[0]) == (way == "unfolded"), "which computes in that layout only"
    assert has_pixels_last(found[-1])


@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("of_images", [True, False])
def test_the_size_of_windows(of_images: bool, kernel: int, stride: int, padding: int) -> None:
    """The largest factor of the products is what the estimate of a stack's memory counts."""
    sizes: list[int] = []

    class Factors(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if str(func).startswith("aten.bmm"):
                sizes.extend(leaf.numel() for leaf in args)
            return func(*args, **(kwargs or {}))

    x, weight = random(1, 64, 2, 7, 9), random(1, 2, 2, kernel, kernel).requires_grad_()
    window = (stride, stride), (padding, padding)
    with Factors():
        CONVOLUTIONS["unfolded"](x.requires_grad_(of_images), weight, *window).sum().backward()
    assert max(sizes) == 64 * window_numbers((2, 7, 9), weight.shape[1:], *window, of_images=of_images)
