"""Dense layers of one client on a CPU, multiplied by oneDNN, in place of MKL, to which torch leaves them in float32.

On AMD MKL uses half the width of the vector registers: 90 to 100 GFLOP/s on one core of a Zen 5, where oneDNN reaches
130 to 210. A sum is added in another order, so the numbers have other last bits.

Shape suffixes: B batch, D features in, O features out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from flbench.models.network import Forward, Tree
from flbench.models.sites import Shape
from flbench.models.token_layers import blank_batch

#: Least floating-point operations of a product that oneDNN computes: on smaller ones it saves less time than it takes
#: to reach it from Python.
LEAST_FLOPS = 15e6


def multiplied_by_onednn(forward: Forward) -> Forward:
    """Return a network's forward pass with its large products by oneDNN; it can be differentiated more than once."""
    mode = _Products(LEAST_FLOPS)

    def multiplied(params: Tree, buffers: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
        with mode:
            return forward(params, buffers, images)

    return multiplied


def has_onednn() -> bool:
    """Return whether torch has oneDNN here."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_large_products(network: nn.Module, image: Shape, batch_size: int) -> bool:
    """Return whether oneDNN computes any product of this network, which is put into evaluation mode."""
    if not has_onednn():
        return False
    mode = _Products(LEAST_FLOPS / batch_size)
    network.eval()
    with torch.no_grad(), mode:
        network(blank_batch(1, image, next(network.parameters())))
    return mode.computed > 0


class _Products(TorchFunctionMode):
    """Calls of ``F.linear`` in float32 with at least ``least_flops`` by oneDNN; ``computed`` counts them.

    A mode belongs to the thread that has entered it.
    """

    def __init__(self, least_flops: float) -> None:
        super().__init__()
        self._least, self.computed = least_flops, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.linear or kwargs or not self._is_large(*args):
            return func(*args, **(kwargs or {}))
        self.computed += 1
        return _Linear.apply(*args)

    def _is_large(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
        plain = x.is_cpu and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        return plain and 2 * x.numel() * len(weight) >= self._least


class _Linear(torch.autograd.Function):
    """x (..., D) times the weight (O, D), transposed, plus the bias: (..., O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, bias = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        product = _differentiable if torch.is_grad_enabled() else _product
        gradient_BO, x_BD = gradient.reshape(-1, len(weight)), x.reshape(-1, weight.shape[1])
        return (
            product(gradient_BO, weight.mT).view(x.shape) if of_x else None,
            product(gradient_BO.mT, x_BD.mT) if of_weight else None,
            gradient_BO.sum(0) if bias is not None and of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _differentiable(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.mT
