"""Batch normalization by a mixture of batch and global statistics (``norms.batch_statistics``).

Shape suffixes: N clients (absent for one), C channels. Input as in ``norm_layers``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from flbench.models.batch_norm_layers import per_channel
from flbench.models.norm_layers import BatchNorm


class HybridBatchNorm(BatchNorm):
    """HBN: training normalizes by a learned mixture of the batch's statistics and the server's global ones.

    The mixture is (1 - a) global + a batch, a = sigmoid(``mix``), with a number for each channel that stays on the
    client. Before the local steps the layer observes the client's data (``StackableLayer.observes``) and notes the
    mixtures by which it normalizes them: ``seen_weight`` (0-d) sums the samples' weights, ``seen_mean`` and
    ``seen_square`` each batch's mean, and mean square around the global mean, times its weight. Averaged over the
    clients by size, these are moments of all observed samples together.
    """

    unshared: ClassVar[frozenset[str]] = frozenset({"mix"})
    observes: ClassVar[frozenset[str]] = frozenset({"samples"})
    constants: ClassVar[frozenset[str]] = frozenset(
        {"running_mean", "running_var", "global_mean", "global_var", "samples"}
    )
    fresh: ClassVar[frozenset[str]] = frozenset({"mix", "seen_weight", "seen_mean", "seen_square", "samples"})

    def __init__(self, channels: int, eps: float, momentum: float, *, observes_all: bool) -> None:
        super().__init__(channels, eps, momentum)
        self.observes_all = observes_all
        self.mix = nn.Parameter(torch.zeros(channels))
        for name in ("global_mean", "seen_mean", "seen_square"):
            self.register_buffer(name, torch.zeros(channels))
        self.register_buffer("global_var", torch.ones(channels))
        for name in ("seen_weight", "samples"):
            self.register_buffer(name, torch.zeros(()))
        self.global_mean: Tensor
        self.global_var: Tensor
        self.seen_mean: Tensor
        self.seen_square: Tensor
        self.seen_weight: Tensor
        self.samples: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize by the mixture in training, by the running statistics in evaluation."""
        if not self.training:
            return super().normalize(x)
        axes, shape = per_channel(x, self.running_mean)
        observing = self.samples.dim() == self.running_mean.dim()
        if observing:
            weights = self._weights_of(x, axes)
            own_mean = (weights * x).sum(axes)
            own_var = (weights * (x - own_mean.view(shape)).square()).sum(axes)
        else:
            own_var, own_mean = torch.var_mean(x, axes, correction=0)
        share = (1 + torch.tanh(self.mix / 2)) / 2  # the sigmoid, with equal bits at every place of a stack
        mean, var = self.global_mean.lerp(own_mean, share), self.global_var.lerp(own_var, share)
        if observing:
            self._observe(mean, var)
        return self.scaled(x, mean, var, shape)

    def _weights_of(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """The weights of a channel's numbers in the batch's moments, 0 without samples, to broadcast with x."""
        batch, clients = axes[0], self.samples.shape[:-1]
        tokens = x.shape[batch] // self.samples.shape[-1]  # of each sample, inside a transformer
        alike = math.prod(x.shape[batch + 2 :]) * tokens  # numbers of a channel in one sample
        weights = self.samples / self.samples.sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny) / alike
        return weights.repeat_interleave(tokens, -1).view(*clients, -1, *[1] * (x.dim() - batch - 1))

    def _observe(self, mean: Tensor, var: Tensor) -> None:
        """Add the moments by which a batch is normalized."""
        weight = self.samples.sum(-1)
        self.seen_weight.add_(weight)
        self.seen_mean.add_(weight.unsqueeze(-1) * mean)
        self.seen_square.add_(weight.unsqueeze(-1) * (var + (mean - self.global_mean).square()))

    def after_round(self, before: Mapping[str, Tensor], averaged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Evaluate with the moments of what the clients observed; move the global statistics towards them."""
        weight, global_mean = averaged["seen_weight"].unsqueeze(-1), before["global_mean"]
        mean = averaged["seen_mean"] / weight
        var = (averaged["seen_square"] / weight - (mean - global_mean).square()).clamp_min(0)
        return {
            "running_mean": mean,
            "running_var": var,
            "global_mean": global_mean.lerp(mean, self.momentum),
            "global_var": before["global_var"].lerp(var, self.momentum),
            **{name: torch.zeros_like(before[name]) for name in ("seen_weight", "seen_mean", "seen_square")},
        }
