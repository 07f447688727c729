"""Torch layers that take one client's tensors or a stack of clients'.

Shape suffixes: N clients (absent, or the leading axis of input, parameters and buffers alike), B batch, C channels,
H, W pixels, D features. A module is built for one client; when its parameters are replaced by stacked ones
(``torch.func.functional_call``), its input carries the same leading axis. Norm layers sit at (B, C, H, W) or (B, D).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class StackableLayer(nn.Module):
    """Marks a layer whose forward handles the leading client axis itself; any other is mapped with ``vmap``."""


class Dense(nn.Linear, StackableLayer):
    """x_BD to (B, out)."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the weight (out, D), or by (N, out, D) client by client."""
        if self.weight.dim() == 2:
            return F.linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.bmm(x, self.weight.mT)
        return torch.baddbmm(self.bias.unsqueeze(-2), x, self.weight.mT)


class Conv(nn.Conv2d, StackableLayer):
    """x_BCHW to (B, out, H', W'), without padding."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve; a stack of clients becomes one convolution with a group a client."""
        if self.weight.dim() == 4:
            return F.conv2d(x, self.weight, self.bias)
        clients = x.shape[0]
        folded = x.transpose(0, 1).flatten(1, 2)
        bias = None if self.bias is None else self.bias.flatten()
        out = F.conv2d(folded, self.weight.flatten(0, 1), bias, groups=clients)
        return torch.unflatten(out, 1, (clients, -1)).transpose(0, 1)


class Pool(StackableLayer):
    """Max-pooling with square windows of ``size`` side by side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, W) to (..., H // size, W // size)."""
        if x.dim() == 4:
            return torch.max_pool2d(x, self.size)
        return torch.unflatten(torch.max_pool2d(x.flatten(0, 1), self.size), 0, x.shape[:2])


class ScaleNorm(StackableLayer):
    """sqrt(d) x / max(||x||, eps) over the elements of one sample."""

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.dims = tuple(range(-len(shape), 0))
        self.scale = math.sqrt(math.prod(shape))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale every sample to norm sqrt(d)."""
        norm: Tensor = torch.linalg.vector_norm(x, dim=self.dims, keepdim=True)
        return x * (self.scale / norm.clamp_min(self.eps))


class LayerNorm(nn.LayerNorm, StackableLayer):
    """Mean 0 and variance 1 over the elements of one sample, then an elementwise affine map."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axes."""
        if x.dim() == 4 and len(self.normalized_shape) == 3:
            return self._channels_last(x)
        if self.weight.dim() == len(self.normalized_shape):
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        batch_axis = -len(self.normalized_shape) - 1
        normalized = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return torch.addcmul(self.bias.unsqueeze(batch_axis), normalized, self.weight.unsqueeze(batch_axis))

    def _channels_last(self, x: Tensor) -> Tensor:
        """One client's images with the pixels' channels side by side: else torch copies them there and back."""
        channels, height, width = self.normalized_shape
        weight, bias = (leaf.movedim(0, -1).contiguous() for leaf in (self.weight, self.bias))
        return F.layer_norm(x.movedim(1, -1), (height, width, channels), weight, bias, self.eps).movedim(-1, 1)


class GroupNorm(nn.GroupNorm, StackableLayer):
    """Mean 0 and variance 1 over a group of channels of one sample, then an affine map a channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each group."""
        if self.weight.dim() == 1:
            return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        normalized = F.group_norm(x.flatten(0, 1), self.num_groups, eps=self.eps).view_as(x)
        affine = (x.shape[0], 1, x.shape[2], *[1] * (x.dim() - 3))  # (N, 1, C) and ones for the pixels
        return torch.addcmul(self.bias.view(affine), normalized, self.weight.view(affine))


class BatchNorm(StackableLayer):
    """Mean 0 and variance 1 a channel over the batch in training, running statistics in evaluation, then affine.

    In training the buffers ``running_mean`` and ``running_var`` are updated in place: who calls with buffers that must
    stay as they are, passes copies.
    """

    def __init__(self, channels: int, eps: float, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))
        self.running_mean: Tensor
        self.running_var: Tensor

    def reset_parameters(self) -> None:
        """The identity map and standard statistics."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; a stack of clients is folded into the channels, so that no statistics cross clients."""
        if self.weight.dim() == 1:
            return self._normalize(x)
        folded = x.transpose(0, 1).flatten(1, 2)
        return torch.unflatten(self._normalize(folded), 1, x.shape[:1] + x.shape[2:3]).transpose(0, 1)

    def _normalize(self, x: Tensor) -> Tensor:
        flat = (self.running_mean.view(-1), self.running_var.view(-1), self.weight.flatten(), self.bias.flatten())
        return F.batch_norm(x, *flat, training=self.training, momentum=self.momentum, eps=self.eps)
