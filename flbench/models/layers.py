"""Torch layers for one client's tensors or a stack of clients'; the normalizing ones are in ``norm_layers``.

Shape suffixes: N clients (absent, or the leading axis of input, parameters and buffers alike), B batch, C channels,
H, W pixels, D features. A module is built for one client; when its parameters are replaced by stacked ones
(``network.pure_forward``), its input has the same leading axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.models.convolutions import CONVOLUTIONS, apart, beside, grouped, has_pixels_last
from flbench.models.max_pooling import max_pool
from flbench.models.narrow_convolutions import pooled_relu

#: Layers with fewer outputs multiply weight by input: input by weight takes twice as long.
FEW_OUTPUTS = 32


class StackableLayer(nn.Module):
    """Marks a layer whose forward handles the leading client axis itself; any other is mapped with ``vmap``.

    Attributes:
        constants: names of its buffers with which every client starts a round as the server has them; the engine
            neither averages them nor counts them as sent.
        local: names of its buffers that stay on each client.
        fresh: names of its buffers that count or measure a training: a network that starts from stored weights does not
            take them over.
        shares: names of its 0-d buffers that receive each client's share of the cohort's samples at the start of a
            round. A layer that has any combines the clients of a stack, which then is always a run's whole cohort.
        unshared: names of its parameters that stay on each client and have no effect in evaluation mode, so that the
            clients still share one model. The local optimizer trains them; no hook of a method but ``train`` sees them.
        observes: names of its 0-d buffers that receive a weight for each sample (B,) while the layer observes the
            client's own data: in a pass before the local steps, where it is in training mode and all other layers are
            in evaluation mode. A client's weights add up to 1 over all of its training samples.
        observes_all: whether these are all of the client's samples, and not only the first 64; one layer of a network
            decides for all.
    """

    constants: ClassVar[frozenset[str]] = frozenset()
    local: ClassVar[frozenset[str]] = frozenset()
    fresh: ClassVar[frozenset[str]] = frozenset()
    shares: ClassVar[frozenset[str]] = frozenset()
    unshared: ClassVar[frozenset[str]] = frozenset()
    observes: ClassVar[frozenset[str]] = frozenset()
    observes_all: bool = False

    def after_round(self, before: Mapping[str, Tensor], averaged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the buffers that the server has after a round, where they differ from the averaged ones.

        Args:
            before: the server's own buffers of this layer, by their names in it, as they were during the round.
            averaged: the same after the round: the means of the clients', and ``constants`` as before.
        """
        return {}


class Dense(nn.Linear, StackableLayer):
    """x_BD to (B, out); ``reparametrization`` maps the weight before its use."""

    def __init__(
        self, features: int, out: int, *, bias: bool = True, reparametrization: nn.Module | None = None
    ) -> None:
        super().__init__(features, out, bias=bias)
        self.reparametrization = reparametrization

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the weight (out, D), or by (N, out, D) client by client."""
        weight = self.weight if self.reparametrization is None else self.reparametrization(self.weight)
        return product(x, weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x_BD times the weight (out, D), transposed, plus the bias; or the same client by client."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    out: Tensor = StackedProduct.apply(*_as_autocast_would(x, weight))
    return out if bias is None else out + bias.unsqueeze(-2)


def at_least_float(x: Tensor) -> Tensor:
    """Return x in float32, or as it is where it has more digits."""
    return x if x.dtype == torch.float64 else x.float()


def _as_autocast_would(*factors: Tensor) -> list[Tensor]:
    """The factors in the dtype in which ``torch.autocast`` multiplies; autocast does not reach custom functions."""
    kind = factors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(factors)
    return [factor.to(torch.get_autocast_dtype(kind)) for factor in factors]


def multiplied(x_NBD: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x_NBD times the weights (N, width, D), transposed, client by client, in the memory of ``out`` if given.

    Few outputs (classes) are stored class by class, with the samples side by side.
    """
    if weight.shape[-2] < FEW_OUTPUTS:
        return torch.bmm(weight, x_NBD.mT, out=None if out is None else out.mT).mT
    return torch.bmm(x_NBD, weight.mT, out=out)


class StackedProduct(torch.autograd.Function):
    """x_NBD times the weights (N, out, D), transposed, client by client: (N, B, out).

    Torch's own backward computes the weights' gradient transposed, and every elementwise step after it is several times
    slower on mixed layouts.
    """

    @staticmethod
    def forward(ctx: Any, x_NBD: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x_NBD, weight)
        return multiplied(x_NBD, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_NBD, weight = ctx.saved_tensors
        of_x = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return of_x, torch.bmm(gradient.mT, x_NBD) if ctx.needs_input_grad[1] else None


class Conv(nn.Conv2d, StackableLayer):
    """x_BCHW to (B, out, H', W'); ``reparametrization`` maps the weight before its use."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
        reparametrization: nn.Module | None = None,
    ) -> None:
        super().__init__(channels, out, kernel, stride, padding, bias=bias)
        self.reparametrization = reparametrization
        self.window = (stride, stride), (padding, padding)
        self.stacked_as = "grouped"  #: one of ``convolutions.CONVOLUTIONS``

    def forward(self, x: Tensor) -> Tensor:
        """Convolve; a stack of clients, each with its own weights, in the way that ``stacked_as`` names."""
        weight = self.weight if self.reparametrization is None else self.reparametrization(self.weight)
        if weight.dim() == 4:
            return F.conv2d(x, weight, self.bias, self.stride, self.padding)
        stride, padding = self.window
        if self.stacked_as == "grouped":
            return grouped(x, weight, stride, padding, self.bias)
        x, weight = _as_autocast_would(x, weight)
        out = CONVOLUTIONS[self.stacked_as](x, weight, stride, padding)
        return out if self.bias is None else out + self.bias.to(out.dtype)[:, None, :, None, None]


class Pool(StackableLayer):
    """Max-pooling with square windows of ``size`` side by side.

    Attributes:
        compiled: whether one client on a CPU is trained by ``max_pooling`` and not by torch's functions.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.compiled = size, True

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, W) to (..., H // size, W // size)."""
        if x.dim() == 4:
            return max_pool(x, self.size) if self.compiled and self.training else torch.max_pool2d(x, self.size)
        if has_pixels_last(x) and x.stride(0) < x.stride(1):  # no copy of what a grouped convolution returned
            return apart(torch.max_pool2d(beside(x), self.size), len(x))
        return torch.unflatten(torch.max_pool2d(x.flatten(0, 1), self.size), 0, x.shape[:2])


class PooledConv(Conv):
    """A convolution of few channels and stride 1, max-pooling with windows of ``pool`` side by side, and ReLU.

    Attributes:
        by_hand: whether one client on a CPU is trained by the functions of ``narrow_convolutions`` and not by torch's.
    """

    def __init__(self, channels: int, out: int, kernel: int, padding: int, pool: int, *, bias: bool) -> None:
        super().__init__(channels, out, kernel, padding=padding, bias=bias)
        self.pool = Pool(pool)
        self.by_hand = True

    def forward(self, x: Tensor) -> Tensor:
        """x_BCHW to (B, out, H', W')."""
        one_client = self.weight.dim() == 4 and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if self.by_hand and self.training and one_client:
            return pooled_relu(x, self.weight, self.bias, self.window[1][0], self.pool.size)
        return F.relu(self.pool(super().forward(x)))


class GlobalAverage(StackableLayer):
    """Each channel's mean over its pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C, H, W) to (..., C)."""
        return x.mean((-2, -1))


class Relu(StackableLayer):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class Flatten(StackableLayer):
    """(..., C, H, W) to (..., C * H * W)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(-3)


class Residual(StackableLayer):
    """shortcut(x) + branch(x); without a shortcut x itself is added."""

    def __init__(self, branch: Mapping[str, nn.Module], shortcut: nn.Module | None) -> None:
        super().__init__()
        self.branch = nn.Sequential()
        for name, layer in branch.items():
            self.branch.add_module(name, layer)
        self.shortcut = shortcut or nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shortcut(x) + self.branch(x)
        return out
