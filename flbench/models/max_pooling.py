"""Max-pooling of one client on a CPU by compiled functions, to the bit as torch computes it.

Only a gradient of -0.0 differs: torch adds it to 0.0, and here it keeps its sign. As a part of any sum it is the same.

Torch stores the place of each maximum in eight bytes, and clears the memory of a gradient before it writes into it:
with the first layer of the CNN in bfloat16 a quarter of a local step.

Shape suffixes: B batch, C channels, H, W pixels, h, w pixels after the pooling.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from flbench.native.build import Native, native
from flbench.native.convolution_layout import LANES, Pooling

_aten = torch.ops.aten
_LAST = torch.channels_last
_DTYPES = (torch.float32, torch.bfloat16)
_Numbers = ctypes.c_int64 * len(Pooling)


def max_pool(x_BCHW: Tensor, size: int) -> Tensor:
    """Return the maxima of square windows side by side (B, C, h, w); not within ``vmap``.

    Compiled functions compute them on a CPU for windows of 2 by 2 and images channels last, in float32 or bfloat16.
    """
    compiled = _compiled() if _fits(x_BCHW, size) else None
    if compiled is None:
        return torch.max_pool2d(x_BCHW, size)
    maxima: Tensor = _Maxima.apply(x_BCHW, *compiled)
    return maxima


def maxima_of(x_BCHW: Tensor, size: int, *, relu: bool) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the same, perhaps after ReLU, without a graph, and a function from its gradient to that of the images."""
    compiled = _compiled() if _fits(x_BCHW, size) else None
    if compiled is not None:
        maxima, places = _maxima(compiled[0], x_BCHW, relu=relu)
        return maxima, partial(_of_images, compiled[1], places)
    window, none = [size, size], [0, 0]
    maxima, chosen = _aten.max_pool2d_with_indices(x_BCHW, window)
    if relu:
        maxima.relu_()

    def of_images(gradient: Tensor) -> Tensor:
        gradient = _aten.threshold_backward(gradient, maxima, 0) if relu else gradient
        out: Tensor = _aten.max_pool2d_with_indices_backward(
            gradient, x_BCHW, window, window, none, [1, 1], False, chosen
        )
        return out

    return maxima, of_images


def _fits(x: Tensor, size: int) -> bool:
    _, channels, rows, columns = x.shape
    whole = channels % LANES == rows % 2 == columns % 2 == 0 < x.numel()
    return x.is_cpu and x.dtype in _DTYPES and size == 2 and whole and x.is_contiguous(memory_format=_LAST)


@cache
def _compiled() -> tuple[Native, Native] | None:
    forward, backward = native("pooling", "forward"), native("pooling", "backward")
    return None if forward is None or backward is None else (forward, backward)


class _Maxima(torch.autograd.Function):
    """Both passes, which are functions. The images are not kept: a step writes their gradient into their memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Native, backward: Native) -> Tensor:
        maxima, places = _maxima(forward, x, relu=False)
        ctx.backward_pass = backward
        ctx.save_for_backward(places)
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient is differentiated again
            return slow_gradient(gradient, places), None, None
        return _of_images(ctx.backward_pass, places, gradient), None, None


def slow_gradient(gradient_BChw: Tensor, places_BChw: Tensor) -> Tensor:
    """Return the gradient of the images (B, C, 2h, 2w) from the places of the maxima, by torch's own functions."""
    pixels = [torch.where(places_BChw == place, gradient_BChw, 0) for place in range(4)]
    rows = [torch.stack(pair, -1).flatten(-2) for pair in (pixels[:2], pixels[2:])]
    return torch.stack(rows, -2).flatten(-3, -2)


def _maxima(forward: Native, x: Tensor, *, relu: bool) -> tuple[Tensor, Tensor]:
    """Maxima and their places."""
    batch, channels, rows, columns = x.shape
    shape = batch, channels, rows // 2, columns // 2
    maxima = torch.empty(shape, dtype=x.dtype, memory_format=_LAST)
    places = torch.empty(shape, dtype=torch.uint8, memory_format=_LAST)
    _call(forward, x, maxima, places, relu=relu)
    return maxima, places


def _of_images(backward: Native, places: Tensor, gradient: Tensor) -> Tensor:
    batch, channels, rows, columns = places.shape
    of_x = torch.empty((batch, channels, 2 * rows, 2 * columns), dtype=gradient.dtype, memory_format=_LAST)
    _call(backward, of_x, gradient.contiguous(memory_format=_LAST), places)
    return of_x


def _call(function: Native, x: Tensor, y: Tensor, places: Tensor, *, relu: bool = False) -> None:
    batch, channels, rows, columns = y.shape
    values = {
        Pooling.X: x.data_ptr(),
        Pooling.Y: y.data_ptr(),
        Pooling.PLACES: places.data_ptr(),
        Pooling.ROWS: batch * rows,
        Pooling.COLUMNS: columns,
        Pooling.CHANNELS: channels,
        Pooling.BYTES: x.element_size(),
        Pooling.RELU: relu,
    }
    numbers = _Numbers(*map(values.__getitem__, Pooling))
    function(ctypes.addressof(numbers))
