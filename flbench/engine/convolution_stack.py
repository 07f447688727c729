"""The first layers of a stack of clients as one: convolutions, each with max-pooling, bias and ReLU, in compiled code.

Shape suffixes: N clients, B batch, C channels, H, W pixels, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flbench.methods.base import Tree
from flbench.models.layers import PooledConv
from flbench.native.build import Native, native
from flbench.native.layout import KERNEL, LANES, LAYER, POOL

#: A layer with its path in the network.
ConvLayer = tuple[str, PooledConv]


def convolutions(layers: Sequence[ConvLayer]) -> Convolutions | None:
    """Return such layers in compiled code; None where they have another window, or nothing is compiled."""
    for _, layer in layers:
        if layer.kernel_size != (KERNEL, KERNEL) or layer.padding != (0, 0) or layer.pool.size != POOL:
            return None
    passes = [native("convolutions", name) for name in ("forward", "backward")]
    return None if None in passes else Convolutions(layers, *passes)


class Convolutions:
    """A row of ``PooledConv`` with its memory: what it returns is valid until it is called again."""

    def __init__(self, layers: Sequence[ConvLayer], forward: Native, backward: Native) -> None:
        self._layers, self._forward, self._backward = layers, forward, backward
        self._shape: torch.Size | None = None

    def forward(self, params: Tree, buffers: Tree, images: Tensor) -> Tensor:
        """Return features_NBD of images_NBCHW."""
        if images.shape != self._shape:
            self._allocate(images.shape)
        images = images.contiguous()
        self._weights = [params[f"{path}.weight"].contiguous() for path, _ in self._layers]
        biases = [
            params[f"{path}.bias"].contiguous() if layer.bias is not None else None for path, layer in self._layers
        ]
        for number, (weight, bias) in enumerate(zip(self._weights, biases, strict=True)):
            self._records[number, 3] = weight.data_ptr()
            if bias is not None:
                self._records[number, 4] = bias.data_ptr()
        self._arguments[4], self._arguments[6] = images.data_ptr(), self._features.data_ptr()
        self._forward(self._arguments.data_ptr())
        return self._features

    def backward(self, params: Tree, gradient: Tensor, grads: Tree) -> Tensor:
        """Add the gradients of the parameters to ``grads`` by name; the images need none."""
        gradient = gradient.contiguous()
        self._arguments[6] = gradient.data_ptr()
        self._backward(self._arguments.data_ptr())
        for (path, layer), of_weight, of_bias in zip(self._layers, self._of_weights, self._of_biases, strict=True):
            grads[f"{path}.weight"] = of_weight
            if layer.bias is not None:
                grads[f"{path}.bias"] = of_bias
        return gradient

    def _allocate(self, shape: torch.Size) -> None:
        self._shape = shape
        clients, batch, channels, side, _ = shape
        vectors, pixels = clients * _up(batch) // LANES, shape[2:].numel()
        self._kept, self._of_weights, self._of_biases = [], [], []
        self._records = torch.zeros(len(self._layers), LAYER, dtype=torch.int64)
        largest, spread = _up(pixels), 0
        for number, (_, layer) in enumerate(self._layers):
            outs, half = layer.out_channels, (side - KERNEL + 1) // POOL
            size, after, out = channels * side * side, POOL * half, outs * half * half
            weights, window = layer.weight.numel(), range(KERNEL)
            taps = [(c * side + y) * side + x for c in range(channels) for y in window for x in window]
            places = [y * side + x for y in range(after) for x in range(after)]
            self._of_weights.append(torch.empty(clients, *layer.weight.shape))
            self._of_biases.append(torch.empty(clients, outs))
            kept = [
                torch.zeros(clients, outs), self._of_weights[-1], self._of_biases[-1],
                torch.empty(LANES * vectors * (size if number else _up(pixels))),
                torch.empty(LANES * vectors * out, dtype=torch.int8),
                LANES * torch.tensor(taps), LANES * torch.tensor(places),
                torch.empty(weights), torch.empty(weights), torch.empty(LANES * weights), torch.empty(LANES * outs),
            ]  # fmt: skip
            self._kept += kept
            self._records[number, :15] = torch.tensor([channels, side, outs, 0, *(each.data_ptr() for each in kept)])
            largest, spread = max(largest, size, _up(out)), max(spread, outs * after * after)
            channels, side = outs, half
        features = channels * side * side
        self._features = torch.empty(clients, batch, features)
        rooms = [torch.empty(LANES * size) for size in (largest, largest, largest, spread)]
        self._kept += rooms
        self._arguments = torch.tensor(
            [clients, batch, len(self._layers), self._records.data_ptr(), 0, pixels, 0, features]
            + [room.data_ptr() for room in rooms]
        )  # fmt: skip


def _up(count: int) -> int:
    """The least multiple of ``LANES`` that is not below the count."""
    return -(-count // LANES) * LANES
