"""Two ways to convolve a stack of clients with the weights of each; on a GPU the faster one is found by measuring.

Both compute the same sums in different orders. A CPU uses ``grouped``.

Shape suffixes: N clients, B batch, C channels in, O channels out, H, W pixels, h, w pixels after the convolution.
"""

from __future__ import annotations

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


CONVOLUTIONS: Mapping[str, Convolution] = {"grouped": grouped, "streamed": streamed}


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
