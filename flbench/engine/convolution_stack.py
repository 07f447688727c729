"""The convolutions of a stack of clients by compiled functions, in place of torch's operations.

The slow twin is torch itself. A client's bits do not depend on the stack.

Shape suffixes: N clients, B batch, C channels, H, W pixels, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from flbench.engine.native_norms import NativeNorm
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
class Convolution:
    """A convolution by its path, and the normalization between it and the pooling; ``relu_first``: behind the ReLU.

    ``norm_shapes``: those of its parameters.
    """

    path: str
    module: Conv
    norm: NativeNorm | None = None
    relu_first: bool = False
    norm_shapes: Mapping[str, torch.Size] = field(default_factory=dict)


@dataclass(frozen=True)
class NativeConvolutions:
    """The first layers of a network: convolutions with max-pooling, bias and ReLU, whose passes are compiled.

    Attributes:
        passes: forward and backward.
        layers: the convolutions. ``paths``: those of all modules that they replace.
    """

    passes: tuple[Native, Native]
    layers: Sequence[Convolution]
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
        weights = sum(layer.module.weight.numel() for layer in self.layers)  # exact: whole numbers
        return weights <= ALWAYS_FASTER or batch >= FILLED * _up(batch)


class ConvolutionStack:
    """A stack of clients with such layers; what it returns is valid until its next pass."""

    def __init__(self, network: NativeConvolutions, *, training: bool = True) -> None:
        self._network, self._training = network, training
        self._shape: torch.Size | None = None

    def forward(self, params: Tree, buffers: Tree, images: Tensor) -> Tensor:
        """Return features_NBD of images_NBCHW."""
        if images.shape != self._shape:
            self._allocate(images.shape)
        self._set_params(params, buffers)
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

    def _set_params(self, params: Tree, buffers: Tree) -> None:
        self._params = {name: params[name].contiguous() for name in self._grads}
        for part, layer, numbers in zip(self._parts, self._network.layers, self._numbers, strict=True):
            part[Part.WEIGHT] = self._params[f"{layer.path}.weight"].data_ptr()
            if layer.module.bias is not None:
                part[Part.BIAS] = self._params[f"{layer.path}.bias"].data_ptr()
            norm = layer.norm
            if norm is not None:
                read = self._read[norm.path] = norm.tensors(buffers, numbers, training=self._training)
                for name, tensor in read.items():
                    part[Part[name]] = tensor.data_ptr()
                part[Part.GAINS] = self._params[f"{norm.path}.weight"].data_ptr() if norm.gains else 0
                part[Part.SHIFTS] = self._params[f"{norm.path}.bias"].data_ptr() if norm.bias else 0

    def _allocate(self, shape: torch.Size) -> None:
        """Reserve memory for a stack of this shape."""
        self._shape = shape
        clients, batch, channels, side, _ = shape
        pixels, layers = shape[2:].numel(), self._network.layers
        vectors = clients * _up(batch) // LANES
        head = self._head = np.zeros(len(Field) + len(Part) * len(layers), np.int64)
        self._parts = head[len(Field) :].reshape(-1, len(Part))
        self._kept: list[Tensor] = []
        self._read: dict[str, Tree] = {}
        self._grads: Tree = {}
        largest, widest = _up(pixels), 0
        self._numbers = torch.empty(len(layers), clients)
        for i, convolution in enumerate(layers):
            path, layer, norm = convolution.path, convolution.module, convolution.norm
            outs, half, weights = layer.out_channels, (side - KERNEL + 1) // POOL, layer.weight.numel()
            inputs, part = channels * side * side, self._parts[i]
            after = POOL * half if norm is None else side - KERNEL + 1
            part[Part.CHANNELS], part[Part.SIDE], part[Part.OUTS], part[Part.AFTER] = channels, side, outs, after
            of_weight, of_bias = torch.empty(clients, *layer.weight.shape), torch.empty(clients, outs)
            self._grads[f"{path}.weight"] = of_weight
            if layer.bias is not None:
                self._grads[f"{path}.bias"] = of_bias
            taps, starts = _distances(channels, side, after)
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
            if norm is not None:
                memory |= self._of_norm(convolution, part, clients, vectors, outs * after * after)
            for name, tensor in memory.items():
                part[name] = tensor.data_ptr()
            self._kept += memory.values()
            largest, widest = max(largest, inputs, _up(outs * half * half)), max(widest, outs * after * after)
            channels, side = outs, half
        rooms = torch.empty(1 + 2 * _up(batch) // LANES, largest, LANES), torch.empty(widest, LANES)
        self._kept += rooms
        head[Field.OUT], head[Field.ROOM] = rooms[0].data_ptr(), rooms[0][0].nbytes
        head[Field.IN] = rooms[0][_up(batch) // LANES].data_ptr()
        head[Field.ROWS], head[Field.OF_PIXELS] = rooms[0][-1].data_ptr(), rooms[1].data_ptr()
        head[Field.CLIENTS], head[Field.BATCH], head[Field.LAYERS] = clients, batch, len(layers)
        head[Field.PIXELS], head[Field.WIDTH] = pixels, channels * side * side
        self._features = torch.empty(clients, batch, channels * side * side)

    def _of_norm(
        self, layer: Convolution, part: np.ndarray, clients: int, vectors: int, elements: int
    ) -> dict[Part, Tensor]:
        """Declare the normalization of a layer with ``elements`` outputs a sample, and return its memory."""
        norm = cast(NativeNorm, layer.norm)
        part[Part.NORM], part[Part.RELU_FIRST], part[Part.CENTRED] = norm.kind, layer.relu_first, norm.centred
        part[Part.GROUPS] = norm.groups
        memory = {
            Part.ACTIVATIONS: torch.empty(vectors, elements, LANES),
            Part.STATISTICS: torch.empty(vectors, 4, norm.groups, LANES),
        }
        for part_of, name, there in [(Part.OF_GAINS, "weight", norm.gains), (Part.OF_SHIFTS, "bias", norm.bias)]:
            if there:
                shape = layer.norm_shapes[name]
                part[Part.GAIN_PIXELS] = shape[1:].numel()
                memory[part_of] = self._grads[f"{norm.path}.{name}"] = torch.empty(clients, *shape)
        return memory


def _first_layers(network: nn.Module) -> tuple[list[Convolution], frozenset[str]]:
    """The first layers that are compiled, and the paths of their modules."""
    layers: list[Convolution] = []
    paths: list[str] = []
    left = list(network.trunk.named_children()) if type(network) is Network else []
    while left:
        name, first = left[0]
        norm: tuple[str, nn.Module] | None = None
        types = [type(module) for _, module in left[:4]]
        relu_first = types[1:2] == [Relu]
        if type(first) is PooledConv:  # exactly these: a subclass may compute something else
            conv: Conv = first
            used, pool = 1, first.pool.size
        elif types[:3] == [Conv, Pool, Relu]:
            conv, used, pool = cast(Conv, first), 3, cast(Pool, left[1][1]).size
        elif types[:2] + types[3:] == [Conv, Relu, Pool]:
            conv, used, pool, norm = cast(Conv, first), 4, cast(Pool, left[3][1]).size, left[2]
        elif types[:1] + types[2:] == [Conv, Pool, Relu]:
            conv, used, pool, norm = cast(Conv, first), 4, cast(Pool, left[2][1]).size, left[1]
        else:
            break
        compiled = NativeNorm.of(f"trunk.{norm[0]}", norm[1]) if norm else None
        if norm is not None and compiled is None:
            break
        if conv.reparametrization is not None or conv.window != ((1, 1), (0, 0)):
            break
        if conv.kernel_size != (KERNEL, KERNEL) or pool != POOL:
            break
        shapes = {leaf: value.shape for leaf, value in norm[1].named_parameters()} if norm else {}
        layers.append(Convolution(f"trunk.{name}", conv, compiled, relu_first, shapes))
        paths += [f"trunk.{path}" for path in [*(path for path, _ in left[:used]), f"{name}.pool"]]
        del left[:used]
    return layers, frozenset(paths)


@lru_cache(maxsize=64)
def _distances(channels: int, side: int, after: int) -> tuple[Tensor, Tensor]:
    """Floats from the first pixel to those that a kernel needs, and to those at which kernels are placed."""
    window, pixels = range(KERNEL), range(after)
    taps = [(c * side + y) * side + x for c in range(channels) for y in window for x in window]
    return LANES * torch.tensor(taps), LANES * torch.tensor([y * side + x for y in pixels for x in pixels])


def _up(count: int) -> int:
    """The least multiple of ``LANES`` that is not below the count."""
    return -(-count // LANES) * LANES
