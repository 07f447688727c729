"""Batch normalizations that differ in what clients and server do with the statistics (``norms.batch_statistics``).

Shape suffixes: N clients (absent for one), C channels. Input as in ``norm_layers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.models.norm_layers import BatchNorm


class LocalStatisticsBatchNorm(BatchNorm):
    """SiloBN: batch normalization whose running statistics stay on the client."""

    local: ClassVar[frozenset[str]] = frozenset({"running_mean", "running_var"})


class FixedBatchNorm(BatchNorm):
    """FixBN: batch normalization that trains with the running statistics, unchanged, from a given round on.

    The buffer ``round`` (0-d) counts the rounds. A round is a number of each client, because the runs of a stack may be
    in different rounds.
    """

    constants: ClassVar[frozenset[str]] = frozenset({"round"})

    def __init__(self, channels: int, eps: float, fixed_from: int) -> None:
        super().__init__(channels, eps)
        self.fixed_from = fixed_from
        self.register_buffer("round", torch.empty(()))
        self.round: Tensor

    def reset_parameters(self) -> None:
        """As batch normalization, before the first round."""
        super().reset_parameters()
        self.round.zero_()

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize by the batch's statistics, or by the fixed ones."""
        if not self.training:
            return super().normalize(x)
        axes, shape = per_channel(x, self.running_mean)
        var, mean = torch.var_mean(x, axes, correction=0)
        count = x.numel() // mean.numel()
        fixed = (self.round >= self.fixed_from).unsqueeze(-1)
        with torch.no_grad():
            self._move(self.running_mean, mean, fixed)
            self._move(self.running_var, var * (count / (count - 1)), fixed)
            fixed_mean, fixed_var = self.running_mean.clone(), self.running_var.clone()
        mean, var = torch.where(fixed, fixed_mean, mean), torch.where(fixed, fixed_var, var)
        return self.scaled(x, mean, var, shape)

    def _move(self, running: Tensor, seen: Tensor, fixed: Tensor) -> None:
        running.copy_(torch.where(fixed, running, running.lerp(seen, self.momentum)))

    def after_round(self, before: Mapping[str, Tensor], averaged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the round; keep fixed statistics to the bit, which their weighted mean may miss."""
        fixed = before["round"] >= self.fixed_from
        kept = {name: torch.where(fixed, before[name], averaged[name]) for name in ("running_mean", "running_var")}
        return {**kept, "round": before["round"] + 1}


class GlobalBatchNorm(BatchNorm):
    """FBN: training and evaluation normalize by the server's running statistics, which no gradient passes.

    Clients observe their batches: ``seen_mean`` is the mean over the local steps of a batch's mean, ``seen_square``
    that of the squared deviation from the running mean, which all clients share; ``steps`` (0-d) counts the steps of
    the round. The weighted means of both over the clients are therefore moments of all clients' batches together.
    """

    constants: ClassVar[frozenset[str]] = frozenset({"running_mean", "running_var", "steps"})

    def __init__(self, channels: int, eps: float, momentum: float) -> None:
        super().__init__(channels, eps, momentum)
        for name in ("seen_mean", "seen_square"):
            self.register_buffer(name, torch.empty(channels))
        self.register_buffer("steps", torch.empty(()))
        self.seen_mean: Tensor
        self.seen_square: Tensor
        self.steps: Tensor

    def reset_parameters(self) -> None:
        """The identity map and standard statistics; nothing is seen."""
        super().reset_parameters()
        for leaf in (self.seen_mean, self.seen_square, self.steps):
            leaf.zero_()

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize by the running statistics; in training, observe the batch."""
        _, shape = per_channel(x, self.running_mean)
        if self.training:
            self._observe(x.detach())
        if self.running_mean.dim() == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return self.scaled(x, self.running_mean, self.running_var, shape)

    def _observe(self, x: Tensor) -> None:
        """Add a batch to the means over the steps."""
        axes, shape = per_channel(x, self.running_mean)
        self.steps.add_(1)
        rate = (1 / self.steps).unsqueeze(-1)
        self.seen_mean.lerp_(x.mean(axes), rate)
        self.seen_square.lerp_((x - self.running_mean.view(shape)).square().mean(axes), rate)

    def after_round(self, before: Mapping[str, Tensor], averaged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Move the running statistics towards the mean and variance of all clients' batches."""
        mean, running_mean = averaged["seen_mean"], before["running_mean"]
        var = (averaged["seen_square"] - (mean - running_mean).square()).clamp_min(0)
        return {
            "running_mean": running_mean.lerp(mean, self.momentum),
            "running_var": before["running_var"].lerp(var, self.momentum),
        }


def per_channel(x: Tensor, statistics: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of x over which a channel's statistics are, and the shape in which (C,) or (N, C) broadcasts."""
    batch = statistics.dim() - 1  # the axis of the samples
    pixels = range(batch + 2, x.dim())
    return (batch, *pixels), (*x.shape[:batch], 1, x.shape[batch + 1], *[1] * len(pixels))
