"""Both passes of one client's network in bfloat16 on a CPU, by hand, with the bits of autograd under autocast.

The slow twin is ``gradients.ByAutograd``, whose graph and casts take about a tenth of the CNN's local step.

Shape suffixes: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flbench.methods.base import Tree
from flbench.models.layers import Conv, Dense, Flatten, Pool, PooledConv, Relu
from flbench.models.max_pooling import maxima_of
from flbench.models.network import Network

#: Return the gradients of a layer's input and weight from that of its output; the first only if it is asked for.
Pull = Callable[[Tensor, bool], tuple[Tensor | None, Tensor | None]]

_aten = torch.ops.aten


@dataclass(frozen=True)
class HalfPasses:
    """A network of convolutions, pooling, ReLU and dense layers without biases; each with the name of its weight."""

    layers: Sequence[tuple[str, nn.Module]]
    names: frozenset[str]

    @classmethod
    def of(cls, network: nn.Module) -> HalfPasses | None:
        """Return the passes of a network; None if it has other layers or biases."""
        if type(network) is not Network or any(part is not None for part in _optional(network)):
            return None
        layers = [(f"trunk.{path}.weight", layer) for path, layer in network.trunk.named_children()]
        layers.append(("head.weight", network.head))
        if not all(type(layer) in _FORWARD and _is_plain(layer) for _, layer in layers):
            return None
        return cls(layers, frozenset(name for name, layer in layers if isinstance(layer, Conv | Dense)))

    def forward(self, params: Tree, images: Tensor) -> tuple[Tensor, Tensor, Sequence[Pull]]:
        """Return features and logits of a batch, and what ``backward`` needs of each layer."""
        features = x = images.to(torch.bfloat16)
        pulls: list[Pull] = []
        for name, layer in self.layers:
            features, weight = x, params[name].to(torch.bfloat16) if name in self.names else None
            x, pull = _FORWARD[type(layer)](layer, x, weight)
            pulls.append(pull)
        return features, x, pulls

    def backward(self, pulls: Sequence[Pull], gradient: Tensor) -> Tree:
        """Return the gradient of all weights from that of the logits."""
        grads: Tree = {}
        for number, ((name, _), pull) in reversed(list(enumerate(zip(self.layers, pulls, strict=True)))):
            of_x, of_weight = pull(gradient, number > 0)
            if of_weight is not None:
                grads[name] = of_weight.float()
            if of_x is not None:
                gradient = of_x
        return grads


def _optional(network: Network) -> tuple[nn.Module | None, ...]:
    return network.feature, network.projection, network.logits


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer uses its weight as it is, and has no bias."""
    return not isinstance(layer, Conv | Dense) or (layer.bias is None and layer.reparametrization is None)


def _conv(layer: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Pull]:
    stride, padding = map(list, layer.window)

    def pull(gradient: Tensor, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        window = stride, padding, [1, 1], False, [0, 0], 1
        found = _aten.convolution_backward(gradient, x, weight, None, *window, [wanted, True, False])
        return found[0], found[1]

    return torch.conv2d(x, weight, None, stride, padding), pull


def _pool(layer: Any, x: Tensor, weight: None) -> tuple[Tensor, Pull]:
    maxima, of_images = maxima_of(x, layer.size)
    return maxima, lambda gradient, _: (of_images(gradient), None)


def _relu(layer: Any, x: Tensor, weight: None) -> tuple[Tensor, Pull]:
    x.relu_()  # the last layer's output, which nothing else reads
    return x, lambda gradient, _: (_aten.threshold_backward(gradient, x, 0), None)


def _flatten(layer: Any, x: Tensor, weight: None) -> tuple[Tensor, Pull]:
    return x.flatten(-3), lambda gradient, _: (gradient.view(x.shape), None)


def _dense(layer: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Pull]:
    def pull(gradient: Tensor, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        return gradient @ weight if wanted else None, gradient.t() @ x

    return x @ weight.t(), pull


def _pooled_conv(layer: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Pull]:
    pixels, of_pixels = _conv(layer, x, weight)
    maxima, of_maxima = _pool(layer.pool, pixels, None)
    out, of_out = _relu(layer, maxima, None)

    def pull(gradient: Tensor, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        for later in (of_out, of_maxima):
            found = later(gradient, True)[0]
            assert found is not None
            gradient = found
        return of_pixels(gradient, wanted)

    return out, pull


_FORWARD: dict[type[nn.Module], Callable[..., tuple[Tensor, Pull]]] = {
    Conv: _conv, Dense: _dense, Flatten: _flatten, Pool: _pool, PooledConv: _pooled_conv, Relu: _relu,
}  # fmt: skip
