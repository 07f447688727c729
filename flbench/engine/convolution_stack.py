"""The convolutions of a stack of clients by compiled functions, in place of torch's operations.

The slow twin is torch itself. A client's bits depend neither on the stack nor on the number of threads.

Shape suffixes: N clients, B batch, C channels, H, W pixels, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import cast

import torch
from torch import Tensor, nn

from flbench.methods.base import Tree
from flbench.models.layers import Conv, Pool, PooledConv, Relu
from flbench.models.network import Network
from flbench.models.sites import Shape
from flbench.native.build import Native, native
from flbench.native.convolution_layout import KERNEL, LANES, POOL, Field, Part


@dataclass(frozen=True)
class NativeConvolutions:
    """The first layers of a network: convolutions with max-pooling, bias and ReLU, whose passes are compiled.

    Attributes:
        passes: forward and backward.
        layers: the convolutions by their paths. ``paths``: those of all modules that they replace.
        threads: among which the clients are divided.
    """

    passes: tuple[Native, Native]
    layers: Sequence[tuple[str, Conv]]
    paths: frozenset[str]
    threads: int = 1

    @classmethod
    def of(cls, network: nn.Module, image: Shape, threads: int = 1) -> NativeConvolutions | None:
        """Return those of a network, for images of this shape; None where there are none, or nothing is compiled."""
        layers, paths = _first_layers(network)
        if not layers or image[-2:] != image[-1:] * 2:
            return None
        forward, backward = (native("convolutions", name) for name in ("forward", "backward"))
        return None if forward is None or backward is None else cls((forward, backward), layers, paths, threads)

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        """The threads."""
        return ThreadPoolExecutor(self.threads, "convolutions")


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
        self._heads[:, Field.IMAGES] = self._images.data_ptr()
        self._run(self._network.passes[0], self._features)
        return self._features

    def backward(self, of_features: Tensor) -> Tree:
        """Return the gradient of the parameters of the last forward pass.

        ``of_features`` (N, D, B) is that of the features, with zeros after the samples up to a multiple of ``LANES``.
        """
        self._run(self._network.passes[1], of_features.contiguous())
        return self._grads

    def _run(self, function: Native, features: Tensor) -> None:
        self._heads[:, Field.FEATURES] = features.data_ptr()
        addresses = [head.data_ptr() for head in self._heads]
        if len(addresses) == 1:
            function(addresses[0])
        else:
            list(self._network.pool.map(function, addresses))

    def _set_params(self, params: Tree) -> None:
        self._params = {name: params[name].contiguous() for name in self._grads}
        for i, (path, layer) in enumerate(self._network.layers):
            self._parts[:, i, Part.WEIGHT] = self._params[f"{path}.weight"].data_ptr()
            if layer.bias is not None:
                self._parts[:, i, Part.BIAS] = self._params[f"{path}.bias"].data_ptr()

    def _allocate(self, shape: torch.Size) -> None:
        """Reserve memory for a stack of this shape."""
        self._shape = shape
        clients, batch, channels, side, _ = shape
        pixels, layers, threads = shape[2:].numel(), self._network.layers, min(self._network.threads, clients)
        vectors = clients * _up(batch) // LANES
        self._heads = torch.zeros(threads, len(Field) + len(Part) * len(layers), dtype=torch.int64)
        self._parts = self._heads[:, len(Field) :].unflatten(1, (-1, len(Part)))
        self._kept: list[Tensor] = []
        self._grads: Tree = {}
        largest, widest = _up(pixels), 0
        for i, (path, layer) in enumerate(layers):
            outs, half, weights = layer.out_channels, (side - KERNEL + 1) // POOL, layer.weight.numel()
            inputs, after, part = channels * side * side, POOL * half, self._parts[:, i]
            part[:, Part.CHANNELS], part[:, Part.SIDE], part[:, Part.OUTS] = channels, side, outs
            of_bias = torch.empty(clients, outs)
            self._grads[f"{path}.weight"] = torch.empty(clients, *layer.weight.shape)
            if layer.bias is not None:
                self._grads[f"{path}.bias"] = of_bias
            taps, starts = _distances(channels, side)
            of_all: dict[Part, Tensor] = {
                Part.BIAS: torch.zeros(clients, outs),
                Part.OF_WEIGHT: self._grads[f"{path}.weight"],
                Part.OF_BIAS: of_bias,
                Part.X: torch.empty(vectors, LANES, inputs if i else _up(pixels)),
                Part.PLACES: torch.empty(vectors, LANES, outs * half * half, dtype=torch.int8),
                Part.TAPS: taps,
                Part.STARTS: starts,
            }
            for name, memory in of_all.items():
                part[:, name] = self._keep(memory).data_ptr()
            of_each = {Part.BY_TAP: weights, Part.BY_ROW: weights}
            self._give(part, of_each | {Part.SUMS: LANES * weights, Part.BIAS_SUMS: LANES * outs})
            largest, widest = max(largest, inputs, _up(outs * half * half)), max(widest, outs * after * after)
            channels, side = outs, half
        rooms = dict.fromkeys((Field.ROWS, Field.OUT, Field.IN), LANES * largest)
        self._give(self._heads, rooms | {Field.OF_PIXELS: LANES * widest})
        width = channels * side * side
        self._features = torch.empty(clients, batch, width)
        numbers = {Field.BATCH: batch, Field.LAYERS: len(layers), Field.PIXELS: pixels, Field.WIDTH: width}
        for field, number in numbers.items():
            self._heads[:, field] = number
        bounds = torch.arange(threads + 1) * clients // threads
        self._heads[:, Field.FIRST], self._heads[:, Field.LAST] = bounds[:-1], bounds[1:]

    def _give(self, of_threads: Tensor, floats: dict[Part, int] | dict[Field, int]) -> None:
        """Give each thread memory of its own."""
        for field, count in floats.items():
            for thread in of_threads:
                thread[field] = self._keep(torch.empty(count)).data_ptr()

    def _keep(self, memory: Tensor) -> Tensor:
        self._kept.append(memory)
        return memory


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
