"""Batch normalization with other policies for its statistics: what clients and server do with them.

``bn`` averages the running statistics and trains with those of the batch at hand. Methods decide what stays on the
clients of a plain ``bn`` (FedBN: all of it); here the norm decides, so any other method can be used with each policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flbench.models.norms.base import EPS
from flbench.models.norms.layerwise import BatchNorm
from flbench.models.sites import Shape
from flbench.registry import NORMS

if TYPE_CHECKING:
    from torch import nn


@NORMS.register("silobn")
@dataclass(frozen=True)
class SiloBatchNorm(BatchNorm):
    """SiloBN (Andreux et al. 2020): running statistics stay on each client, gamma and beta are averaged.

    The statistics are used at evaluation only, so all clients train as with ``bn``. There is no shared model: as with
    FedBN, the accuracy is the mean over the clients' models on the whole test set, and ``acc_personal`` that on the own
    shards.
    """

    equation: ClassVar[str] = "bn; gamma and beta are averaged, running mean and variance never leave the client"
    source: ClassVar[str] = "@andreux2020silobn"
    is_policy: ClassVar[bool] = True
    keeps_statistics: ClassVar[bool] = True

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.batch_norm_layers import LocalStatisticsBatchNorm

        return LocalStatisticsBatchNorm(shape[0], eps=EPS)


@NORMS.register("fixbn")
@dataclass(frozen=True)
class FixedBatchNorm(BatchNorm):
    """FixBN (Zhong et al. 2023): ``bn`` in the first rounds, then the averaged running statistics are fixed.

    From then on training, too, normalizes by them, without a gradient through them; gamma and beta are still trained
    and averaged. The paper's other proposal, a momentum that lasts over rounds, is the experiment's ``keep_momentum``.

    Attributes:
        rounds: how many rounds train with batch statistics. The paper fixes them in the middle of the training; the
            default is the middle of 200 rounds.
    """

    shorthand: ClassVar[str] = "rounds"
    equation: ClassVar[str] = "bn in the first rounds, then mu and sigma are the running ones, fixed"
    source: ClassVar[str] = "@zhong2023fixbn"
    is_policy: ClassVar[bool] = True

    rounds: Annotated[int, Field(ge=1)] = 100

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.batch_norm_layers import FixedBatchNorm

        return FixedBatchNorm(shape[0], EPS, self.rounds)


@NORMS.register("fbn")
@dataclass(frozen=True)
class GlobalBatchNorm(BatchNorm):
    """FBN (Guerraoui et al. 2024): training, too, normalizes by the global running statistics of the round's start.

    No gradient passes the statistics. Clients send the moments of their batches, each step's weighted equally; at the
    end of a round the server computes mean M and variance V of all batches together, the variance between clients
    included, and moves the running ones towards them. The first round has mean 0 and variance 1: no normalization.

    This follows the re-implementation by Chen et al. 2025 (HybridBN), the only code that we could read. There V is
    taken around the new running mean in place of M and divided by the samples minus one.

    Attributes:
        momentum: rate of the running statistics, once a round.
    """

    equation: ClassVar[str] = (
        "gamma_c (x_c - mu_c) / sqrt(s_c + 1e-5) + beta_c; once a round mu <- mu + momentum (M - mu), "
        "s <- s + momentum (V - s), M and V of the round's batches of all clients"
    )
    source: ClassVar[str] = "@guerraoui2024fbn; steps as in the code of @chen2025hbn"
    smallest_batch: ClassVar[int] = 1
    is_policy: ClassVar[bool] = True

    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.batch_norm_layers import GlobalBatchNorm

        return GlobalBatchNorm(shape[0], EPS, self.momentum)


@NORMS.register("hbn")
@dataclass(frozen=True)
class HybridBatchNorm(BatchNorm):
    """HBN (Chen et al. 2025): training normalizes by a learned mixture of batch statistics and global ones.

    Each client keeps its own a of every channel, the sigmoid of a trained number that starts at 0; no hook of a method
    but ``train`` sees these numbers. Before their local steps the participants observe their data, at the weights that
    they received, and the server moves the global statistics towards the mean M and the variance V of all mixtures in
    this pass. Evaluations use M and V of one more pass of the last participants, at the new weights; as a measurement,
    it adds no bytes.

    This follows the authors' code; of the paper we could read the abstract. Two things of the code are left out: V is
    divided by the samples minus one, and a client starts with the mean of the last participants' a.

    Attributes:
        momentum: rate of the global statistics, once a round.
        observed: what a client observes: ``batch``, its first 64 samples, or ``all`` of them in batches of 64.
    """

    equation: ClassVar[str] = (
        "gamma_c (x_c - mu_c) / sqrt(s_c + 1e-5) + beta_c, (mu, s) = (1 - a) (mu, s)_global + a (mu, s)_batch; once a "
        "round mu_global <- mu_global + momentum (M - mu_global), s_global likewise to V; evaluated with M and V"
    )
    source: ClassVar[str] = "@chen2025hbn, and the authors' code"
    smallest_batch: ClassVar[int] = 1
    is_policy: ClassVar[bool] = True

    momentum: Annotated[float, Field(gt=0, le=1)] = 0.002
    observed: Literal["batch", "all"] = "batch"

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.hybrid_batch_norm import HybridBatchNorm

        return HybridBatchNorm(shape[0], EPS, self.momentum, observes_all=self.observed == "all")


@NORMS.register("fedtan")
@dataclass(frozen=True)
class LockStepBatchNorm(BatchNorm):
    """FedTAN (Wang et al. 2023): all participants normalize by the mean of their statistics, layer by layer.

    Means, then variances around the common mean, are averaged in the forward pass, and the gradients with respect to
    both in the backward pass. While the clients have equal weights, the mean of their gradients is that of centralized
    training on all their batches. Participants are weighted by their shares of the samples; the authors' code has
    clients of equal sizes only. All take each step together: it needs ``local_steps`` and the stacked executor. The
    bytes of a run leave these exchanges within a round out.

    Attributes:
        steps: which local steps of a round are in lock step. ``first``: the first, as in the authors' code, where the
            others are plain ``bn``. ``all``: every one.
    """

    equation: ClassVar[str] = (
        "bn with mu = sum_k m_k/m E_k[x], sigma^2 = sum_k m_k/m E_k[(x - mu)^2], and the same means of the gradients "
        "with respect to mu and sigma^2"
    )
    source: ClassVar[str] = "@wang2023fedtan, and the authors' code"
    is_policy: ClassVar[bool] = True
    lock_step: ClassVar[bool] = True

    steps: Literal["first", "all"] = "first"

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.batch_norm_layers import LockStepBatchNorm

        return LockStepBatchNorm(shape[0], EPS, only_first_step=self.steps == "first")
