"""The convolutions of a stack of clients by compiled functions, in place of torch's operations.

The slow twin is torch itself. A client's bits do not depend on the stack.

Shape suffixes: N clients, B batch, C channels, H, W pixels, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from flbench.methods.base import Tree
from flbench.models.layers import Conv, Pool, PooledConv, Relu
from flbench.models.network import Network
from flbench.models.sites import Shape
from flbench.native.build import Native, native
from flbench.native.convolution_layout import KERNEL, LANES, POOL, Field, Part

#: Weights of convolutions below which these are faster than torch's with any batch. LeNet's 2,550 take an eighth of the
#: time even with one sample in a batch, those of ``cnn`` (107,200) with 1, 8 and 12 samples 2.3, 1.0 and 0.84 times it.
ALWAYS_FASTER = 10_000

#: Share of the samples of all vectors that a batch has at least, for which the others are.
FILLED = 0.75


@dataclass(frozen=True)
class NativeConvolutions:
    """The first layers of a network: convolutions with max-pooling, bias and ReLU, whose passes are compiled.

    Attributes:
        passes: forward and backward.
        layers: the convolutions by their paths. ``paths``: those of all modules that they replace.
    """

    passes: tuple[Native, Native]
    layers: Sequence[tuple[str, Conv]]
    paths: frozenset[str]

    @classmethod
    def of(cls, network: nn.Module, image: Shape) -> NativeConvolutions | None:
        """Return those of a network, for images of this shape; None where there are none, or nothing is compiled."""
        layers, paths = _first_layers(network)
        if not layers or image[-2:] != image[-1:] * 2:
            return None
        forward, backward = (native("convolutions", name) for name in ("forward", "backward"))
        return None if forward is None or backward is None else cls((forward, backward), layers, paths)

    def gain(self, batch: int) -> bool:
        """Return whether these are faster than torch's with batches of this size (``ALWAYS_FASTER``)."""
        weights = sum(layer.weight.numel() for _, layer in self.layers)  # exact: whole numbers
        return weights <= ALWAYS_FASTER or batch >= FILLED * _up(batch)


class ConvolutionStack:
    """A stack of clients with such layers; what it returns is valid until its next pass."""

    def __init__(self, network: NativeConvolutions) -> None:
        self._network = network
        self._shape: torch.Size | None = None

    def forward(self, params: Tree, images: Tensor) -> Tensor:
        """Return features_NBD of images_NBCHW."""
        if images.shape != self._shape:
            self._allocate(images.shape)
        self._set_params(params)
        self._images = images.contiguous()
        self._head[Field.IMAGES] = self._images.data_ptr()
        self._run(self._network.passes[0], self._features)
        return self._features

    def backward(self, of_features: Tensor) -> Tree:
        """Return the gradient of the parameters of the last forward pass.

        ``of_features`` (N, D, B) is that of the features, with zeros after the samples up to a multiple of ``LANES``.
        """
        self._run(self._network.passes[1], of_features.contiguous())
        return self._grads

    def _run(self, function: Native, features: Tensor) -> None:
        self._head[Field.FEATURES] = features.data_ptr()
        function(self._head.ctypes.data)

    def _set_params(self, params: Tree) -> None:
        self._params = {name: params[name].contiguous() for name in self._grads}
        for i, (path, layer) in enumerate(self._network.layers):
            self._parts[i, Part.WEIGHT] = self._params[f"{path}.weight"].data_ptr()
            if layer.bias is not None:
                self._parts[i, Part.BIAS] = self._params[f"{path}.bias"].data_ptr()

    def _allocate(self, shape: torch.Size) -> None:
        """Reserve memory for a stack of this shape."""
        self._shape = shape
        clients, batch, channels, side, _ = shape
        pixels, layers = shape[2:].numel(), self._network.layers
        vectors = clients * _up(batch) // LANES
        head = self._head = np.zeros(len(Field) + len(Part) * len(layers), np.int64)
        self._parts = head[len(Field) :].reshape(-1, len(Part))
        self._kept: list[Tensor] = []
        self._grads: Tree = {}
        largest, widest = _up(pixels), 0
        for i, (path, layer) in enumerate(layers):
            outs, half, weights = layer.out_channels, (side - KERNEL + 1) // POOL, layer.weight.numel()
            inputs, after, part = channels * side * side, POOL * half, self._parts[i]
            part[Part.CHANNELS], part[Part.SIDE], part[Part.OUTS] = channels, side, outs
            of_weight, of_bias = torch.empty(clients, *layer.weight.shape), torch.empty(clients, outs)
            self._grads[f"{path}.weight"] = of_weight
            if layer.bias is not None:
                self._grads[f"{path}.bias"] = of_bias
            taps, starts = _distances(channels, side)
            memory = {
                Part.BIAS: torch.zeros(clients, outs),
                Part.OF_WEIGHT: of_weight,
                Part.OF_BIAS: of_bias,
                Part.X: torch.empty(vectors, LANES, inputs if i else _up(pixels)),
                Part.PLACES: torch.empty(vectors, LANES, outs * half * half, dtype=torch.int8),
                Part.TAPS: taps,
                Part.STARTS: starts,
                Part.BY_TAP: torch.empty(weights),
                Part.BY_ROW: torch.empty(weights),
                Part.SUMS: torch.empty(weights, LANES),
                Part.BIAS_SUMS: torch.empty(outs, LANES),
            }
            for name, tensor in memory.items():
                part[name] = tensor.data_ptr()
            self._kept += memory.values()
            largest, widest = max(largest, inputs, _up(outs * half * half)), max(widest, outs * after * after)
            channels, side = outs, half
        rooms = torch.empty(3, largest, LANES), torch.empty(widest, LANES)
        self._kept += rooms
        head[Field.ROWS], head[Field.OUT], head[Field.IN] = (room.data_ptr() for room in rooms[0])
        head[Field.OF_PIXELS] = rooms[1].data_ptr()
        head[Field.CLIENTS], head[Field.BATCH], head[Field.LAYERS] = clients, batch, len(layers)
        head[Field.PIXELS], head[Field.WIDTH] = pixels, channels * side * side
        self._features = torch.empty(clients, batch, channels * side * side)


def _first_layers(network: nn.Module) -> tuple[list[tuple[str, Conv]], frozenset[str]]:
    """The first layers that are compiled, and the paths of their modules."""
    layers: list[tuple[str, Conv]] = []
    paths: list[str] = []
    left = list(network.trunk.named_children()) if type(network) is Network else []
    while left:
        name, first = left[0]
        if type(first) is PooledConv:  # exactly these: a subclass may compute something else
            conv: Conv = first
            used, pool = 1, first.pool.size
        elif [type(module) for _, module in left[:3]] == [Conv, Pool, Relu]:
            conv = cast(Conv, first)
            used, pool = 3, cast(Pool, left[1][1]).size
        else:
            break
        if conv.reparametrization is not None or conv.window != ((1, 1), (0, 0)):
            break
        if conv.kernel_size != (KERNEL, KERNEL) or pool != POOL:
            break
        layers.append((f"trunk.{name}", conv))
        paths += [f"trunk.{path}" for path in [*(path for path, _ in left[:used]), f"{name}.pool"]]
        del left[:used]
    return layers, frozenset(paths)


@lru_cache(maxsize=64)
def _distances(channels: int, side: int) -> tuple[Tensor, Tensor]:
    """Floats from the first pixel to those that a kernel needs, and to those at which kernels are placed."""
    window, after = range(KERNEL), range((side - KERNEL + 1) // POOL * POOL)
    taps = [(c * side + y) * side + x for c in range(channels) for y in window for x in window]
    return LANES * torch.tensor(taps), LANES * torch.tensor([y * side + x for y in after for x in after])


def _up(count: int) -> int:
    """The least multiple of ``LANES`` that is not below the count."""
    return -(-count // LANES) * LANES
