"""Both passes of one client's network in bfloat16 on a CPU, by hand, with the bits of autograd under autocast.

The slow twin is ``gradients.ByAutograd``, whose graph and casts take a tenth of the CNN's local step.

Shape suffixes: B batch, D features, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flbench.engine.dense_stack import Target, log_softmax_gradient
from flbench.methods.base import Tree
from flbench.models.frozen import frozen_names
from flbench.models.layers import Conv, Dense, Flatten, Pool, PooledConv, Relu
from flbench.models.max_pooling import maxima_of
from flbench.models.network import Network

#: Return the gradients of a layer's input and weight from that of its output; the first only if it is asked for.
Pull = Callable[[Tensor, bool], tuple[Tensor | None, Tensor | None]]

#: From a layer's input and weight to its output.
Step = Callable[[Tensor, Tensor | None], tuple[Tensor, Pull]]

_aten = torch.ops.aten


class HalfPasses:
    """A network of convolutions, pooling, ReLU and dense layers without biases; each has one backward pass."""

    def __init__(self, steps: Sequence[tuple[str, Step]]) -> None:
        """``steps``: each with the name that its layer's weight has or would have."""
        self._steps = steps
        self._pulls: list[Pull] = []

    @classmethod
    def of(cls, network: nn.Module) -> HalfPasses | None:
        """Return the passes of a network; None on a GPU, or if it has other layers, biases or frozen weights."""
        if type(network) is not Network or frozen_names(network) or not next(network.parameters()).is_cpu:
            return None
        layers = [(f"trunk.{path}", layer) for path, layer in network.trunk.named_children()]
        layers.append(("head", network.head))
        behind = network.feature, network.projection, network.logits
        if any(part is not None for part in behind) or not all(
            type(layer) in _STEPS and _is_plain(layer) for _, layer in layers
        ):
            return None
        return cls(list(_steps(layers)))

    def forward(self, params: Tree, buffers: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features_BD and logits_BY in float32."""
        features = x = images.to(torch.bfloat16)
        self._pulls.clear()
        for name, step in self._steps:
            features, weight = x, params[name].to(torch.bfloat16) if name in params else None
            x, pull = step(x, weight)
            self._pulls.append(pull)
        return features.float(), x.float()

    def cross_entropy(self, logits: Tensor, target: Target) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy, 0-d, and its gradient by the logits."""
        log_p_1YB, labels_11B = torch.log_softmax(logits.mT.unsqueeze(0), 1), target[0].view(1, 1, -1)
        loss = log_p_1YB.gather(1, labels_11B).neg().mean()
        return loss, log_softmax_gradient(log_p_1YB, labels_11B, None).squeeze(0).mT

    def backward(self, params: Tree, of_logits: Tensor | None, of_features: Tensor | None = None) -> Tree:
        """Return the gradient of all parameters from that of the logits, which alone enter the loss."""
        assert of_logits is not None and of_features is None
        gradient, grads = of_logits.to(torch.bfloat16), dict.fromkeys(params, of_logits)
        for name, _ in reversed(self._steps):
            of_x, of_weight = self._pulls.pop()(gradient, len(self._pulls) > 0)
            if of_weight is not None:
                grads[name] = of_weight.float()
            gradient = gradient if of_x is None else of_x
        return grads


def _steps(layers: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, Step]]:
    """Yield the name of each layer's weight, and its step; pooling and a ReLU after it are one."""
    afters = [*(layer for _, layer in layers[1:]), None]
    pooled = False
    for (path, layer), after in zip(layers, afters, strict=True):
        if not (pooled and isinstance(layer, Relu)):
            options = {"relu": isinstance(after, Relu)} if isinstance(layer, Pool) else {}
            yield f"{path}.weight", partial(_STEPS[type(layer)], layer, **options)
        pooled = isinstance(layer, Pool)


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


def _pool(layer: Any, x: Tensor, weight: None, *, relu: bool) -> tuple[Tensor, Pull]:
    maxima, of_images = maxima_of(x, layer.size, relu=relu)
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
    maxima, of_maxima = maxima_of(pixels, layer.pool.size, relu=True)
    return maxima, lambda gradient, wanted: of_pixels(of_maxima(gradient), wanted)


_STEPS: dict[type[nn.Module], Callable[..., tuple[Tensor, Pull]]] = {
    Conv: _conv, Dense: _dense, Flatten: _flatten, Pool: _pool, PooledConv: _pooled_conv, Relu: _relu,
}  # fmt: skip
