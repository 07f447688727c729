"""Batch normalizations that differ in what clients and server do with the statistics (``norms.batch_statistics``).

Shape suffixes: N clients (absent for one), C channels. Input as in ``norm_layers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

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
    fresh: ClassVar[frozenset[str]] = frozenset({"round"})

    def __init__(self, channels: int, eps: float, fixed_from: int) -> None:
        super().__init__(channels, eps)
        self.fixed_from = fixed_from
        self.register_buffer("round", torch.zeros(()))
        self.round: Tensor

    def normalize(self, x: Tensor) -> Tensor:
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
    fresh: ClassVar[frozenset[str]] = frozenset({"seen_mean", "seen_square", "steps"})

    def __init__(self, channels: int, eps: float, momentum: float) -> None:
        super().__init__(channels, eps, momentum)
        for name in ("seen_mean", "seen_square"):
            self.register_buffer(name, torch.zeros(channels))
        self.register_buffer("steps", torch.zeros(()))
        self.seen_mean: Tensor
        self.seen_square: Tensor
        self.steps: Tensor

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


class LockStepBatchNorm(BatchNorm):
    """FedTAN: statistics, and the gradients with respect to them, are averaged over the clients of the stack.

    The buffer ``share`` (0-d) is each client's weight, ``steps`` (0-d) counts the steps of the round. A client that is
    not in a stack is alone, as if its share were 1.
    """

    constants: ClassVar[frozenset[str]] = frozenset({"share", "steps"})
    fresh: ClassVar[frozenset[str]] = frozenset({"share", "steps"})
    shares: ClassVar[frozenset[str]] = frozenset({"share"})

    def __init__(self, channels: int, eps: float, only_first_step: bool) -> None:
        super().__init__(channels, eps)
        self.only_first_step = only_first_step
        self.register_buffer("share", torch.ones(()))
        self.register_buffer("steps", torch.zeros(()))
        self.share: Tensor
        self.steps: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize x_NBC or x_NBCHW by common statistics in training."""
        if not self.training or self.running_mean.dim() == 1:
            return super().normalize(x)
        axes, shape = per_channel(x, self.running_mean)
        mean = self._common(x.mean(axes))
        var = self._common((x - mean.view(shape)).square().mean(axes))
        count = x[0, :, 0].numel()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (count / (count - 1)), self.momentum)
            self.steps.add_(1)
        return self.scaled(x, mean, var, shape)

    def _common(self, own_NC: Tensor) -> Tensor:
        """The clients' mean of a statistic, or each client's own where the step is not in lock step."""
        common: Tensor = MeanOverClients.apply(own_NC, self.share)
        if not self.only_first_step:
            return common
        return torch.where((self.steps == 0).unsqueeze(-1), common, own_NC)


class MeanOverClients(torch.autograd.Function):
    """sum_n share_n x_n for every client; backward, the same mean of the clients' gradients.

    Autograd's own backward, with respect to the sum of the losses, is share_k sum_n g_n: at unequal shares the clients'
    gradients, weighted by the shares again when they are aggregated, would not be the gradient of the mean loss.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, share_N: Tensor) -> Tensor:
        ctx.save_for_backward(share_N)
        return (share_N.unsqueeze(-1) * x_NC).sum(0, keepdim=True).expand_as(x_NC)

    @staticmethod
    def backward(ctx: Any, gradient_NC: Tensor) -> tuple[Tensor, None]:
        (share_N,) = ctx.saved_tensors
        return (share_N.unsqueeze(-1) * gradient_NC).sum(0, keepdim=True).expand_as(gradient_NC), None


def per_channel(x: Tensor, statistics: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of x over which a channel's statistics are, and the shape in which (C,) or (N, C) broadcasts."""
    batch = statistics.dim() - 1  # the axis of the samples
    pixels = range(batch + 2, x.dim())
    return (batch, *pixels), (*x.shape[:batch], 1, x.shape[batch + 1], *[1] * len(pixels))
