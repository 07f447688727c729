"""Three ways to convolve a stack of clients with the weights of each; on a GPU the fastest is found by measuring.

All compute the same sums in different orders. A CPU uses ``grouped``.

Shape suffixes: N clients, B batch, C channels in, O channels out, H, W pixels, h, w pixels after the convolution,
P pixels of all images of a client, K numbers of a window: its pixels times its channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]

#: x_NBCHW and weight (N, O, C, kernel) to (N, B, O, h, w), for a stride and a zero padding.
Convolution = Callable[[Tensor, Tensor, Pair, Pair], Tensor]

#: Streams on which single convolutions run side by side.
STREAMS = 4


def grouped(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, bias: Tensor | None = None) -> Tensor:
    """Return one convolution with a group a client, over the channels of all clients side by side."""
    clients = x.shape[0]
    flat_bias = None if bias is None else bias.flatten()
    return apart(F.conv2d(beside(x), weight.flatten(0, 1), flat_bias, stride, padding, groups=clients), clients)


def beside(x: Tensor) -> Tensor:
    """Return x_NBCHW as (B, N * C, H, W), the channels of all clients side by side, in the layout of x.

    It is a view of what ``apart`` returned, and else a copy.
    """
    if has_pixels_last(x):
        return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)
    return x.transpose(0, 1).flatten(1, 2)


def apart(x: Tensor, clients: int) -> Tensor:
    """Return (B, N * C, H, W) as a view (N, B, C, H, W)."""
    return torch.unflatten(x, 1, (clients, -1)).transpose(0, 1)


def pixels_last(x: Tensor) -> Tensor:
    """Return a copy of (..., C, H, W) in which the channels of a pixel are side by side: channels last, for a stack."""
    # Not contiguous(), which leaves a single channel's stride as it is.
    return x.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def has_pixels_last(x: Tensor) -> bool:
    """Return whether the channels of a pixel are side by side; of images of one pixel they always are, so False."""
    return x.stride(-3) == 1 and x.shape[-2:].numel() > 1


def streamed(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return one convolution for each client, side by side on parallel streams."""
    out: Tensor = _Streamed.apply(x, weight, stride, padding)
    return out


def unfolded(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return one product of matrices for each client, all in one batch: the windows of its images times its weights.

    The result has its pixels last, whatever the layout of x.
    """
    out: Tensor = _Unfolded.apply(x, weight, stride, padding)
    return out


CONVOLUTIONS: Mapping[str, Convolution] = {"grouped": grouped, "streamed": streamed, "unfolded": unfolded}


class _Streamed(torch.autograd.Function):
    """Each pass forks from the current stream and joins it, so torch may run it on any stream."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.window = stride, padding
        calls = [partial(F.conv2d, *pair, None, stride, padding) for pair in zip(x, weight, strict=True)]
        return _stack(_side_by_side(calls, x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        stride, padding = ctx.window
        wanted = [ctx.needs_input_grad[0], True, False]
        both = torch.ops.aten.convolution_backward
        calls = [
            partial(both, *each, None, stride, padding, [1, 1], False, [0, 0], 1, wanted)
            for each in zip(gradient, x, weight, strict=True)
        ]
        of_x, of_weight, _ = zip(*_side_by_side(calls, x), strict=True)
        return _stack(of_x) if wanted[0] else None, _stack(of_weight), None, None


class _Unfolded(torch.autograd.Function):
    """Each pass copies the windows that it needs: kept ones would take many times the memory of the images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.window = stride, padding
        return _products(_padded(x.movedim(-3, -1), padding, padding), weight, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        stride, padding = ctx.window
        gradient_NBhwO = gradient.movedim(-3, -1)
        of_x = _of_images(gradient_NBhwO, x.shape, weight, stride, padding) if ctx.needs_input_grad[0] else None
        windows_NBhwK = _windows(_padded(x.movedim(-3, -1), padding, padding), weight.shape[-2:], stride)
        of_weight_NOK = torch.bmm(gradient_NBhwO.flatten(1, 3).mT, windows_NBhwK.flatten(1, 3))
        return of_x, of_weight_NOK.unflatten(2, (*weight.shape[-2:], -1)).movedim(-1, 2), None, None


def _of_images(gradient_NBhwO: Tensor, shape: torch.Size, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the gradient of images of this shape: the output's, spread by the stride, convolved with flipped weights.

    So each number is one sum, where adding up windows of gradients would take a pass over the images for each pixel of
    a window.
    """
    (down, right), (height, width) = stride, gradient_NBhwO.shape[2:4]
    if (down, right) != (1, 1):
        size = (height - 1) * down + 1, (width - 1) * right + 1
        spread = gradient_NBhwO.new_zeros(*shape[:2], *size, gradient_NBhwO.shape[-1])
        spread[:, :, ::down, ::right] = gradient_NBhwO
        gradient_NBhwO = spread
    before = [kernel - 1 - pad for kernel, pad in zip(weight.shape[-2:], padding, strict=True)]
    after = [old - new + pad for old, new, pad in zip(shape[-2:], gradient_NBhwO.shape[2:4], padding, strict=True)]
    return _products(_padded(gradient_NBhwO, before, after), weight.flip(-2, -1).transpose(1, 2), (1, 1))


def _products(x_NBHWC: Tensor, weight: Tensor, stride: Pair) -> Tensor:
    """Convolve padded images; the result (N, B, O, h, w) has its pixels last."""
    windows_NBhwK = _windows(x_NBHWC, weight.shape[-2:], stride)
    out_NPO = torch.bmm(windows_NBhwK.flatten(1, 3), weight.movedim(2, -1).flatten(2).mT)
    out: Tensor = out_NPO.unflatten(1, windows_NBhwK.shape[1:4])
    return out.movedim(-1, -3)


def _windows(x_NBHWC: Tensor, kernel: Sequence[int], stride: Pair) -> Tensor:
    """Return the windows (N, B, h, w, K), with the channels of a pixel side by side."""
    windows = x_NBHWC.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
    return windows.movedim(4, -1).flatten(4)


def _padded(x_NBHWC: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Return images with (rows, columns) of zeros ``before`` and ``after`` them; negative numbers cut pixels off."""
    pads = (0, 0, before[1], after[1], before[0], after[0])
    return F.pad(x_NBHWC, pads) if any(pads) else x_NBHWC


def window_numbers(image: Sequence[int], weight: Sequence[int], stride: Pair, padding: Pair, *, of_images: bool) -> int:
    """Return the size of the windows of one image that ``unfolded`` copies, in the pass that copies most.

    Args:
        image: shape of the image, as (C, H, W).
        weight: shape of one client's weight, as (O, C, kernel).
        stride: the convolution's.
        padding: the convolution's.
        of_images: whether the image's gradient is computed.
    """
    out, channels, *kernel = weight
    sizes = zip(image[1:], kernel, stride, padding, strict=True)
    after = math.prod((size + 2 * pad - window) // step + 1 for size, window, step, pad in sizes)
    return math.prod(kernel) * max(channels * after, of_images * out * math.prod(image[1:]))


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack``, which by itself loses the layout of the tensors."""
    if not has_pixels_last(tensors[0]):
        return torch.stack(tuple(tensors))
    return torch.stack([each.movedim(-3, -1) for each in tensors]).movedim(-1, -3)


def _side_by_side(calls: Sequence[Callable[[], Any]], like: Tensor) -> list[Any]:
    """Return the values of independent calls, computed on parallel streams if ``like`` is on a GPU.

    The side streams start after all work that is queued on the current stream, and the current stream continues after
    all of them. So memory that a side stream frees is reused only after its last reader.
    """
    if not like.is_cuda:
        return [call() for call in calls]
    own, streams = torch.cuda.current_stream(like.device), _streams(like.device)
    for stream in streams:
        stream.wait_stream(own)
    values = []
    for number, call in enumerate(calls):
        with torch.cuda.stream(streams[number % len(streams)]):
            values.append(call())
    for stream in streams:
        own.wait_stream(stream)
    return values


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]
