"""Three ways to convolve a stack of clients with the weights of each: on a GPU, which is fastest must be measured.

They compute the same sums in different orders. ``grouped`` is the one for CPUs.

Shape suffixes: N clients (n: a slice of them), B batch, C channels in, O channels out, H, W pixels, h, w pixels after
the convolution, P elements of a patch (C times the kernel's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]

#: x_NBCHW and weight (N, O, C, kernel) to (N, B, O, h, w), for a stride and a zero padding.
Convolution = Callable[[Tensor, Tensor, Pair, Pair], Tensor]

#: Most bytes of patches at once: more clients are taken in slices.
PATCH_BYTES = 2**30

#: Streams on which single convolutions run side by side.
STREAMS = 4


def grouped(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, bias: Tensor | None = None) -> Tensor:
    """One convolution with a group a client, over channels of all clients side by side."""
    clients = x.shape[0]
    folded = x.transpose(0, 1).flatten(1, 2)
    flat_bias = None if bias is None else bias.flatten()
    out = F.conv2d(folded, weight.flatten(0, 1), flat_bias, stride, padding, groups=clients)
    return torch.unflatten(out, 1, (clients, -1)).transpose(0, 1)


def unfolded(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """A batch of matrix products, one a client, over the patches of its images."""
    out: Tensor = _Unfolded.apply(x, weight, stride, padding)
    return out


def streamed(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """A convolution for each client, side by side on parallel streams."""
    out: Tensor = _Streamed.apply(x, weight, stride, padding)
    return out


CONVOLUTIONS: Mapping[str, Convolution] = {"grouped": grouped, "unfolded": unfolded, "streamed": streamed}


class _Unfolded(torch.autograd.Function):
    """Patches are made anew for the backward pass: kept, they would take kernel-size times the images' memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.window = stride, padding
        parts = []
        for part in _slices(x, weight, stride, padding):
            patches = _patches(x[part], weight, stride, padding)
            product = torch.bmm(patches.flatten(1, 3), weight[part].flatten(2).mT)
            parts.append(product.unflatten(1, patches.shape[1:4]))
        return torch.cat(parts).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = [], []
        for part in _slices(x, weight, *ctx.window):
            own = gradient[part].permute(0, 1, 3, 4, 2).flatten(1, 3)
            patches = _patches(x[part], weight, *ctx.window).flatten(1, 3)
            of_weight.append(torch.bmm(own.mT, patches))
            if ctx.needs_input_grad[0]:
                of_x.append(_fold(torch.bmm(own, weight[part].flatten(2)), x[part], weight, *ctx.window))
        return torch.cat(of_x) if of_x else None, torch.cat(of_weight).view_as(weight), None, None


def _patches(x_nBCHW: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """All windows that the kernel meets: (n, B, h, w, P)."""
    padded = F.pad(x_nBCHW, (padding[1], padding[1], padding[0], padding[0]))
    windows = padded.unfold(-2, weight.shape[-2], stride[0]).unfold(-2, weight.shape[-1], stride[1])
    return windows.permute(0, 1, 3, 4, 2, 5, 6).flatten(4)


def _fold(patches: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Add the patches (n, B * h * w, P) up to images of the shape of ``x``."""
    kernel, pixels = tuple(weight.shape[-2:]), tuple(x.shape[-2:])
    columns = patches.unflatten(1, (x.shape[1], -1)).flatten(0, 1).mT
    return F.fold(columns, pixels, kernel, padding=padding, stride=stride).view_as(x)


def _slices(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Iterator[slice]:
    """Clients in slices whose patches take at most ``PATCH_BYTES``, at least one client each."""
    sides = zip(x.shape[-2:], weight.shape[-2:], stride, padding, strict=True)
    height, width = ((side + 2 * pad - kernel) // step + 1 for side, kernel, step, pad in sides)
    of_client = x.shape[1] * height * width * weight[0, 0].numel() * x.element_size()
    most = max(1, PATCH_BYTES // of_client)
    for first in range(0, len(x), most):
        yield slice(first, first + most)


class _Streamed(torch.autograd.Function):
    """Both passes fork from the current stream and join it, so that neither depends on where torch runs them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.window = stride, padding
        return torch.stack(
            _side_by_side([partial(F.conv2d, *pair, None, stride, padding) for pair in zip(x, weight, strict=True)], x)
        )

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
        return torch.stack(of_x) if wanted[0] else None, torch.stack(of_weight), None, None


def _side_by_side(calls: Sequence[Callable[[], Any]], like: Tensor) -> list[Any]:
    """The values of independent calls, computed on parallel streams where there are any.

    The side streams begin after all that the current one was given, and it goes on after all of them. So a block of
    memory that one of them frees is used again only after whoever still reads it.
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
