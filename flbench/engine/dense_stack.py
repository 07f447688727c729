"""The passes of a stack of multi-layer perceptrons, with a backward pass that is derived by hand.

On small networks torch's bookkeeping (modules, autograd's graph, new memory in each step) takes longer than the
arithmetic. Here a network is a row of layers that compute both passes by the operations of autograd in its order, so
that on a CPU every number has the same bits. Memory is allocated in the first step and overwritten in the others.

With a loss L, and G = dL/dy the gradient at a layer's output y:

- product y = x W^T + b:   dL/dx = G W,   dL/dW = G^T x,   dL/db = sum_B G;
- y = max(x, 0):           dL/dx = G where y > 0, else 0;
- cross-entropy L = mean_B -log p_label, p = softmax(z):   with H = dL/dlog p = -onehot(label) / B,
                           dL/dz = H - p sum_Y H = (p - onehot(label)) / B.

A normalization is derived by autograd, as a graph of this layer alone. The slow twin is ``gradients.ByAutograd``.

Shape suffixes: N clients, B batch, D features of a layer's input, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flbench.methods.base import Tree
from flbench.models.layers import Dense, Flatten, Relu, multiplied
from flbench.models.network import Network, pure_forward
from flbench.models.norm_layers import Normalization

#: Autograd's operation; torch looks each part of its name up anew.
_threshold_backward = torch.ops.aten.threshold_backward.grad_input

#: Labels (B,), and for a stack with partial batches the number of samples (N,) of each batch, else None.
Target = tuple[Tensor, Tensor | None]

#: A layer with its path in the network.
DenseLayer = tuple[str, nn.Module]


class _Layer(Protocol):
    """A layer with its memory: what it returns is valid until it is called again."""

    def forward(self, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        """Return the output."""

    def backward(self, params: Tree, gradient: Tensor, grads: Tree) -> Tensor:
        """Add the gradients of its parameters to ``grads`` by name, and return that of its input.

        Args:
            params: those of the last forward pass.
            gradient: of the output of that pass; it may be overwritten.
            grads: receives the gradients of the parameters.
        """


class _Product:
    """x_NBD times the weight (N, out, D), transposed, plus the bias (N, out); ``first``: x are images."""

    def __init__(self, path: str, *, bias: bool, first: bool) -> None:
        self._weight, self._bias, self._first = f"{path}.weight", f"{path}.bias" if bias else None, first
        self._x: Tensor
        self._y: Tensor | None = None
        self._of_x: Tensor | None = None
        self._of_weight: Tensor | None = None

    def forward(self, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        self._x = x
        self._y = multiplied(x, params[self._weight], out=self._y)
        return self._y if self._bias is None else self._y.add_(params[self._bias].unsqueeze(-2))

    def backward(self, params: Tree, gradient: Tensor, grads: Tree) -> Tensor:
        grads[self._weight] = self._of_weight = torch.bmm(gradient.mT, self._x, out=self._of_weight)
        if self._bias is not None:
            grads[self._bias] = gradient.sum(-2)
        if self._first:
            return gradient  # nothing before it has parameters
        self._of_x = torch.bmm(gradient, params[self._weight], out=self._of_x)
        return self._of_x


class _Relu:
    """max(x, 0)."""

    def __init__(self) -> None:
        self._y: Tensor
        self._memory: Tensor | None = None

    def forward(self, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        self._y = self._memory = torch.clamp_min(x, 0, out=self._memory)
        return self._y

    def backward(self, params: Tree, gradient: Tensor, grads: Tree) -> Tensor:
        # In place, or as autograd in the layout of y: the bits of a product depend on the layout of its factors.
        out = gradient if gradient.stride() == self._y.stride() else torch.empty_like(self._y)
        _threshold_backward(gradient, self._y, 0, grad_input=out)
        return out


class _Normalization:
    """A normalizing layer."""

    def __init__(self, path: str, layer: Normalization) -> None:
        self._forward: Callable[[Tree, Tree, Tensor], Any] = pure_forward(layer)
        self._params = {name: f"{path}.{name}" for name, _ in layer.named_parameters()}
        self._buffers = {name: f"{path}.{name}" for name, _ in layer.named_buffers()}
        self._leaves: list[Tensor] = []
        self._y: Tensor

    def forward(self, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            own = {name: params[path].detach().requires_grad_() for name, path in self._params.items()}
            self._leaves = [leaf, *own.values()]
            self._y = self._forward(own, {name: buffers[path] for name, path in self._buffers.items()}, leaf)
        return self._y.detach()

    def backward(self, params: Tree, gradient: Tensor, grads: Tree) -> Tensor:
        of_x, *of_params = torch.autograd.grad(self._y, self._leaves, gradient)
        grads.update(zip(self._params.values(), of_params, strict=True))
        return of_x


class DenseStack:
    """A stack of clients with a network of these ``dense_layers``; what it returns is valid until its next pass."""

    def __init__(self, layers: Sequence[DenseLayer]) -> None:
        made = [_layer(path, module, first=number == 0) for number, (path, module) in enumerate(layers)]
        behind = sum(path in ("head", "logits") for path, _ in layers)  # exact: whole numbers
        self._trunk, self._head = made[:-behind], made[-behind:]

    def forward(self, params: Tree, buffers: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features_NBD and logits_NBY of images_NBCHW, or of features (N, B, D)."""
        x = images.flatten(2)
        for layer in self._trunk:
            x = layer.forward(params, buffers, x)
        features = x
        for layer in self._head:
            x = layer.forward(params, buffers, x)
        return features, x

    def cross_entropy(self, logits: Tensor, target: Target) -> tuple[Any, Tensor]:
        """Return the labels' log-probability (N, 1, B) with the sizes, and the gradient of the mean cross-entropy."""
        log_p_NYB = torch.log_softmax(logits.mT, 1)
        labels_N1B = target[0].unsqueeze(1)
        of_logits = log_softmax_gradient(log_p_NYB, labels_N1B, target[1]).mT
        return (log_p_NYB.gather(1, labels_N1B), target[1]), of_logits

    def backward(self, params: Tree, of_logits: Tensor | None, of_features: Tensor | None = None) -> Tree:
        """Return the gradient of the parameters, which are those of the last forward pass.

        Args:
            params: the parameters.
            of_logits: the gradient of the logits, or None for zero; it may be overwritten.
            of_features: that of the features without the part from the logits, or None for zero; it may be overwritten.
        """
        grads: Tree = {}
        gradient = of_logits
        if gradient is not None:
            for layer in reversed(self._head):
                gradient = layer.backward(params, gradient, grads)
        if of_features is not None and gradient is not None:  # added in the layout of the first, as autograd does
            alike = of_features.stride() == gradient.stride()
            gradient = torch.add(of_features, gradient, out=gradient if alike else None)
        gradient = of_features if gradient is None else gradient
        if gradient is not None:
            for layer in reversed(self._trunk):
                gradient = layer.backward(params, gradient, grads)
        return {name: grads[name] if name in grads else torch.zeros_like(leaf) for name, leaf in params.items()}


def dense_layers(network: nn.Module, before: Collection[str] = ()) -> list[DenseLayer] | None:
    """Return a network's dense layers, ReLUs and normalizations in order; None if it has other or frozen layers.

    ``before`` are the paths of other layers, which come before all of these.
    """
    if not all(leaf.requires_grad for leaf in network.parameters()):
        return None
    layers: list[DenseLayer] = []
    for path, module in network.named_modules():
        if path in before:
            continue
        # Exactly these types: a subclass may compute something else.
        plain = type(module) is Relu or (type(module) is Dense and module.reparametrization is None)
        if plain or isinstance(module, Normalization):
            layers.append((path, module))
        elif type(module) not in (Network, nn.Sequential, Flatten):
            return None
    return layers if type(network) is Network else None


def _layer(path: str, module: nn.Module, *, first: bool) -> _Layer:
    if isinstance(module, Dense):
        return _Product(path, bias=module.bias is not None, first=first)
    return _Normalization(path, module) if isinstance(module, Normalization) else _Relu()


def log_softmax_gradient(log_p_NYB: Tensor, labels_N1B: Tensor, sizes: Tensor | None) -> Tensor:
    """Return the gradient of the mean cross-entropy by the logits, from the log-probabilities.

    ``sizes`` (N,): the mean is over the first ``sizes[n]`` samples of client n's batch; None: over all samples.
    """
    of_log_p = torch.zeros_like(log_p_NYB)
    batch = log_p_NYB.shape[-1]
    if sizes is None:
        of_log_p.scatter_(1, labels_N1B, -1 / batch)
    else:
        counts = torch.arange(batch, device=sizes.device) < sizes[:, None]
        shares = counts.to(log_p_NYB.dtype) / sizes.clamp(min=1)[:, None]
        of_log_p.scatter_(1, labels_N1B, -shares.unsqueeze(1))
    out: Tensor = torch._log_softmax_backward_data(of_log_p, log_p_NYB, 1, log_p_NYB.dtype)
    return out
