"""A convolution of few channels, max-pooling and ReLU of one client on a CPU, with backward passes by hand.

Torch's kernels are slow on few channels: max-pooling, unless the innermost axis in memory fills a vector register, and
the gradient of the images, unless a channel's pixels are side by side. The bias is added after the pooling, to one
pixel of a window. Where pixels of a window share the maximum, the first receives the gradient, as in torch.

Shape suffixes: B batch, C channels in, O channels out, H, W pixels, h, w pixels after the pooling, p side of a pooling
window, k side of the kernel, K side of a shifted kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Float32 numbers in a vector register.
LANES = 16

Gradients = tuple[Tensor | None, ...]

_aten = torch.ops.aten


def pooled_relu(x_BCHW: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: int) -> Tensor:
    """Return ReLU of the maxima of a convolution: (B, O, h, w), with a pixel's channels side by side in memory."""
    way = _PlaceByPlace if len(weight) % LANES else _Together
    maxima: Tensor = way.apply(x_BCHW, weight, bias, padding, pool)
    return maxima.contiguous(memory_format=torch.channels_last)


def slow_pooled_relu(x_BCHW: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: int) -> Tensor:
    """Return the same, computed by torch's own functions."""
    return F.relu(F.max_pool2d(F.conv2d(x_BCHW, weight, bias, padding=padding), pool))


class _Together(torch.autograd.Function):
    """For channels that fill registers: these are side by side in memory, except for the gradient of the images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: int) -> Tensor:
        ctx.padding, ctx.pool = padding, pool
        x_last = x.contiguous(memory_format=torch.channels_last)
        pixels_BOHW = F.conv2d(x_last, weight, None, padding=padding)
        maxima_BOhw: Tensor
        maxima_BOhw, chosen = _aten.max_pool2d_with_indices(pixels_BOHW, [pool, pool])
        _add_and_clip(maxima_BOhw, bias)
        ctx.save_for_backward(x, weight, bias, x_last, pixels_BOHW, chosen, maxima_BOhw)
        return maxima_BOhw

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        x, weight, bias, x_last, pixels_BOHW, chosen, out_BOhw = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _by_autograd(ctx, gradient, x, weight, bias)
        gradient = _aten.threshold_backward(gradient, out_BOhw, 0)
        of_pixels = _of_maxima(gradient, pixels_BOHW, [ctx.pool, ctx.pool], chosen)
        of_weight = _of_convolution(of_pixels, x_last, weight, 1, ctx.padding, [False, True, False])[1]
        of_x = None
        if ctx.needs_input_grad[0]:
            of_pixels, planes, kernel = of_pixels.contiguous(), x.contiguous(), weight.contiguous()
            of_x = _of_convolution(of_pixels, planes, kernel, 1, ctx.padding, [True, False, False])[0]
        return of_x, of_weight, None if bias is None else gradient.sum((0, 2, 3)), None, None


class _PlaceByPlace(torch.autograd.Function):
    """For fewer channels: the pixels at one place of all windows are an image, and pooling compares such images.

    A convolution with the stride ``pool`` computes them, by kernels that are shifted to each place.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, pool: int) -> Tensor:
        ctx.padding, ctx.pool = padding, pool
        planes, kernels = x.contiguous(), _shifted(weight, pool).flatten(0, 2)
        places = F.conv2d(planes, kernels, None, pool, padding)
        maxima, chosen = _aten.max_pool2d_with_indices(_rows(places, pool), [pool * pool, 1])
        maxima_BOhw: Tensor = maxima.view(len(x), len(weight), *places.shape[2:])
        _add_and_clip(maxima_BOhw, bias)
        ctx.save_for_backward(x, weight, bias, planes, kernels, places, chosen, maxima_BOhw)
        return maxima_BOhw

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        x, weight, bias, planes, kernels, places, chosen, out_BOhw = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _by_autograd(ctx, gradient, x, weight, bias)
        gradient = _aten.threshold_backward(gradient.contiguous(), out_BOhw, 0)
        rows = _of_maxima(_rows(gradient, 1), _rows(places, ctx.pool), [ctx.pool**2, 1], chosen)
        of_places = rows.permute(0, 2, 3, 1).view(places.shape)
        wanted = [ctx.needs_input_grad[0], True, False]
        of_x, of_kernels = _of_convolution(of_places, planes, kernels, ctx.pool, ctx.padding, wanted)
        of_weight = _unshifted(of_kernels.unflatten(0, (ctx.pool, ctx.pool, -1)), weight.shape[-1]).sum((0, 1))
        return of_x, of_weight, None if bias is None else gradient.sum((0, 2, 3)), None, None


def _add_and_clip(maxima_BOhw: Tensor, bias: Tensor | None) -> None:
    """Add the bias and take the ReLU, in place."""
    if bias is not None:
        maxima_BOhw.add_(bias[:, None, None])
    maxima_BOhw.relu_()


def _shifted(weight: Tensor, pool: int) -> Tensor:
    """Return kernels of pool - 1 more rows and columns that hold the weight at each place (p, p, O, C, K, K)."""
    *channels, k, _ = weight.shape
    kernels = weight.new_zeros(pool, pool, *channels, k + pool - 1, k + pool - 1)
    _unshifted(kernels, k).copy_(weight)
    return kernels


def _unshifted(kernels: Tensor, k: int) -> Tensor:
    """Return a view of what shifted kernels hold for the weight (p, p, O, C, k, k)."""
    down, right, out, channel, row, column = kernels.stride()
    return kernels.as_strided((*kernels.shape[:4], k, k), (down + row, right + column, out, channel, row, column))


def _rows(places: Tensor, pool: int) -> Tensor:
    """Return images of all places (B, p * p * O, h, w) as the pixels of one column, with O * h * w channels each."""
    return places.reshape(len(places), pool * pool, 1, -1).permute(0, 3, 1, 2)


def _of_maxima(gradient: Tensor, images: Tensor, window: list[int], chosen: Tensor) -> Tensor:
    """Return the gradient of the images from that of the maxima of windows side by side."""
    out: Tensor = _aten.max_pool2d_with_indices_backward(
        gradient, images, window, window, [0, 0], [1, 1], False, chosen
    )
    return out


def _of_convolution(gradient: Tensor, x: Tensor, kernel: Tensor, stride: int, padding: int, wanted: list[bool]) -> Any:
    """Return the gradients of x and of the kernel where they are wanted."""
    window = [stride, stride], [padding, padding], [1, 1]
    return _aten.convolution_backward(gradient, x, kernel, None, *window, False, [0, 0], 1, wanted)[:2]


def _by_autograd(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Gradients:
    """Return the gradients of the slow function, which can be differentiated again."""
    slow = slow_pooled_relu(x, weight, bias, ctx.padding, ctx.pool)
    leaves = [leaf for leaf in (x, weight, bias) if leaf is not None and leaf.requires_grad]
    found = iter(torch.autograd.grad(slow, leaves, gradient, create_graph=True))
    return *(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None, None
