"""Standardizations of a layer's weights, for one client's tensors or a stack of clients' (see ``layers``).

A weight is (out, in, k, k) or (out, in), with a leading axis N for a stack. Statistics are over the weights that lead
to one output: its fan-in.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flbench.models.layers import StackableLayer
from flbench.models.norms.base import EPS
from flbench.models.sites import Shape

#: The factor sqrt(2 / (1 - 1 / pi)) = 1.7129, after which the ReLU of a standard normal number has variance 1. The
#: authors' code has 1.7140, from random numbers.
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))

#: Least fan-in times variance in scaled weight standardization (the authors' code).
LEAST_SPREAD = 1e-4


class StandardizedWeight(StackableLayer):
    """(w - mu) / sqrt(sigma^2 + eps), or, ``unbiased``, (w - mu) / (s + eps) with s of n - 1 degrees of freedom."""

    def __init__(self, shape: Shape, *, unbiased: bool) -> None:
        super().__init__()
        self.dims, self.unbiased = tuple(range(1 - len(shape), 0)), unbiased

    def forward(self, weight: Tensor) -> Tensor:
        var, mean = torch.var_mean(weight, dim=self.dims, keepdim=True, correction=int(self.unbiased))
        return (weight - mean) / (var.sqrt() + EPS if self.unbiased else (var + EPS).sqrt())


class ScaledStandardizedWeight(StackableLayer):
    """g_c RELU_GAIN (w - mu) / sqrt(max(fan-in sigma^2, 1e-4)), with a learned gain g_c of each output, or without."""

    def __init__(self, shape: Shape, *, learned: bool) -> None:
        super().__init__()
        self.dims, self.fan_in = tuple(range(1 - len(shape), 0)), math.prod(shape[1:])
        self.gain = nn.Parameter(torch.ones(shape[0])) if learned else None

    def forward(self, weight: Tensor) -> Tensor:
        var, mean = torch.var_mean(weight, dim=self.dims, keepdim=True, correction=0)
        scale = RELU_GAIN * torch.rsqrt((self.fan_in * var).clamp_min(LEAST_SPREAD))
        if self.gain is not None:
            scale = scale * self.gain.view(var.shape)
        return (weight - mean) * scale
