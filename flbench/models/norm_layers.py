"""Normalizing torch layers, for one client's tensors or a stack of clients' (see ``layers``).

Their input is (B, C, H, W) or (B, D), with a leading axis N for a stack. The loop executor stores an image's channels
side by side in memory (channels last), so a sample's statistics are those of a row of H * W * C numbers.

In mixed precision they compute in float32 and return the dtype of their input: statistics of 8 bits are too coarse, and
running statistics would accumulate their errors.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.models.layers import StackableLayer, at_least_float


class Normalization(StackableLayer):
    """Base of the layers: computes in float32 at least, with autocast or without, and returns the input's dtype."""

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize float32 or float64."""
        raise NotImplementedError(f"{type(self).__name__} must define normalize()")

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return self.normalize(x)
        with torch.autocast(kind, enabled=False):
            return self.normalize(at_least_float(x)).to(x.dtype)


class ScaleNorm(Normalization):
    """sqrt(d) x / max(||x||, eps) over the elements of one sample."""

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.dims = tuple(range(-len(shape), 0))
        self.scale = math.sqrt(math.prod(shape))
        self.eps = eps

    def normalize(self, x: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, dim=self.dims, keepdim=True)
        return x * (self.scale / norm.clamp_min(self.eps))


class Factor(Normalization):
    """c x, with a number c that never changes: a given one, or 1 until it is measured (``engine.initial_factors``).

    Attributes:
        length: sqrt(d), d the elements of one sample.
    """

    constants: ClassVar[frozenset[str]] = frozenset({"factor"})
    fresh: ClassVar[frozenset[str]] = frozenset({"factor"})

    def __init__(self, shape: tuple[int, ...], given: float | None) -> None:
        super().__init__()
        self.length, self.given = math.sqrt(math.prod(shape)), given
        self.register_buffer("factor", torch.full((1,), 1.0 if given is None else given))
        self.factor: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        return x * self.factor.view(-1, *[1] * (x.dim() - 1))


class MeanShift(Normalization):
    """x - mu over the elements of one sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = tuple(range(-len(shape), 0))

    def normalize(self, x: Tensor) -> Tensor:
        if x.dim() == 4 and len(self.dims) == 3:
            # Elements in the order of memory: torch's mean over channels first is slower.
            mean = x.movedim(1, -1).flatten(1).mean(1).view(-1, 1, 1, 1)
        else:
            mean = x.mean(self.dims, keepdim=True)
        return x - mean


class RmsNorm(Normalization):
    """x / sqrt(mean(x^2) + eps) over the elements of one sample, then an elementwise gain."""

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.dims = tuple(range(-len(shape), 0))
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(shape))

    def normalize(self, x: Tensor) -> Tensor:
        """Scale every sample; one client's images with the pixels' channels side by side, as in :class:`LayerNorm`."""
        if x.dim() == 4 and len(self.dims) == 3:
            return self._scale(x.movedim(1, -1), self.weight.movedim(0, -1)).movedim(-1, 1)
        return self._scale(x, self.weight)

    def _scale(self, x: Tensor, weight: Tensor) -> Tensor:
        elements, gain = x.flatten(self.dims[0]), weight.flatten(self.dims[0]).unsqueeze(-2)
        mean_square = torch.linalg.vecdot(elements, elements) / elements.shape[-1]
        return (elements * torch.rsqrt(mean_square + self.eps).unsqueeze(-1) * gain).view(x.shape)


class DynamicTanh(Normalization):
    """gamma tanh(alpha x) + beta, with one learned alpha, and gamma and beta of each channel (the first axis)."""

    def __init__(self, shape: tuple[int, ...], alpha: float) -> None:
        super().__init__()
        self.sample_axes, self.initial_alpha = len(shape), alpha
        self.alpha = nn.Parameter(torch.full((1,), alpha))
        self.weight = nn.Parameter(torch.ones(shape[0]))
        self.bias = nn.Parameter(torch.zeros(shape[0]))

    def normalize(self, x: Tensor) -> Tensor:
        ones = [1] * (self.sample_axes - 1)  # for the pixels
        clients = self.weight.shape[:-1]
        affine = (*clients, *[1] * (x.dim() - len(clients) - self.sample_axes), self.weight.shape[-1], *ones)
        bounded = torch.tanh(self.alpha.view(*clients, *[1] * (x.dim() - len(clients))) * x)
        return torch.addcmul(self.bias.view(affine), bounded, self.weight.view(affine))


class LayerNorm(Normalization, nn.LayerNorm):
    """Mean 0 and variance 1 over the elements of one sample, then perhaps an elementwise affine map."""

    def __init__(self, shape: tuple[int, ...], eps: float, affine: bool = True) -> None:
        super().__init__(shape, eps=eps, elementwise_affine=affine)

    def normalize(self, x: Tensor) -> Tensor:
        axes = len(self.normalized_shape)
        if x.dim() == 4 and axes == 3:
            # One client's images with the pixels' channels side by side: else torch copies them there and back.
            channels, *pixels = self.normalized_shape
            affine = [None if leaf is None else leaf.movedim(0, -1).contiguous() for leaf in (self.weight, self.bias)]
            return F.layer_norm(x.movedim(1, -1), [*pixels, channels], affine[0], affine[1], self.eps).movedim(-1, 1)
        if self.weight is None or self.weight.dim() == axes:
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        normalized = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return torch.addcmul(self.bias.unsqueeze(-axes - 1), normalized, self.weight.unsqueeze(-axes - 1))


class GroupNorm(Normalization, nn.GroupNorm):
    """Mean 0 and variance 1 over a group of channels of one sample, then perhaps an affine map a channel."""

    def __init__(self, groups: int, shape: tuple[int, ...], eps: float, affine: bool = True) -> None:
        super().__init__(groups, shape[0], eps=eps, affine=affine)
        self.sample_axes = len(shape)

    def normalize(self, x: Tensor) -> Tensor:
        if x.dim() == self.sample_axes + 1:
            # Torch is fast with a group's channels side by side, except where every channel is a group of its own.
            laid_out = x.contiguous() if self.num_groups == self.num_channels else x
            return F.group_norm(laid_out, self.num_groups, self.weight, self.bias, self.eps)
        normalized = F.group_norm(x.flatten(0, 1), self.num_groups, eps=self.eps).view_as(x)
        if self.weight is None:
            return normalized
        affine = (x.shape[0], 1, x.shape[2], *[1] * (x.dim() - 3))  # (N, 1, C) and ones for the pixels
        return torch.addcmul(self.bias.view(affine), normalized, self.weight.view(affine))


class BatchNorm(Normalization):
    """Mean 0 and variance 1 a channel over the batch in training, running statistics in evaluation, perhaps affine.

    In training the buffers ``running_mean`` and ``running_var`` are updated in place; a caller whose buffers must not
    change passes copies.
    """

    def __init__(self, channels: int, eps: float, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.running_mean: Tensor
        self.running_var: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize; no statistics cross the clients of a stack."""
        if self.running_mean.dim() == 2:
            return self._normalize_stack(x)
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)

    def _normalize_stack(self, x: Tensor) -> Tensor:
        """Return x_NBC or x_NBCHW normalized client by client.

        Torch's own batch norm, over clients folded into channels, would make a client's bits depend on the stack.
        """
        shape = (x.shape[0], 1, x.shape[2], *[1] * (x.dim() - 3))  # (N, 1, C) and ones for the pixels
        mean, var = self.running_mean, self.running_var
        if self.training:
            var, mean = torch.var_mean(x, dim=(1, *range(3, x.dim())), keepdim=True, correction=0)
            count = x[0, :, 0].numel()
            with torch.no_grad():
                self.running_mean.lerp_(mean.view_as(self.running_mean), self.momentum)
                self.running_var.lerp_(var.view_as(self.running_var) * (count / (count - 1)), self.momentum)
        return self.scaled(x, mean, var, shape)

    def scaled(self, x: Tensor, mean: Tensor, var: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return x with this mean and variance removed, then the affine map; ``shape`` broadcasts (C,) or (N, C)."""
        normalized = (x - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        if self.weight is None or self.bias is None:
            return normalized
        return torch.addcmul(self.bias.view(shape), normalized, self.weight.view(shape))


class BatchShift(Normalization):
    """x_BD - mean over the batch in training, the running mean in evaluation: batch normalization without a scale.

    In training the buffer ``running_mean`` is updated in place, as in :class:`BatchNorm`.
    """

    def __init__(self, features: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(features))
        self.running_mean: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        if not self.training:
            return x - self.running_mean.unsqueeze(-2)
        mean = x.mean(-2, keepdim=True)
        with torch.no_grad():
            self.running_mean.lerp_(mean.squeeze(-2), self.momentum)
        return x - mean


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is a batch normalization, flbench's or torch's."""
    return isinstance(module, BatchNorm | _BatchNorm)
