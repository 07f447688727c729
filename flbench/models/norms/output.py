"""Normalizations of the logits over the batch, from the sharpness paper (Karakida et al. 2019, arXiv 1906.02926).

Its mean and variance are over all training samples. In SGD they are over the mini-batch; evaluation uses running
statistics (momentum 0.1), so that a prediction does not depend on which samples are evaluated together. Those are
buffers: averaged over the clients with the weights of FedAvg. Under label skew a client's batch mean is that of its own
classes, and only the averaged running mean is that of all: training and evaluation see different logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flbench.models.norms.base import EPS, Norm
from flbench.models.sites import Site
from flbench.registry import NORMS

if TYPE_CHECKING:
    from torch import nn

_PAPER = "@karakida2019sharpness"


@NORMS.register("mean-last")
@dataclass(frozen=True)
class MeanSubtraction(Norm):
    """Mean subtraction in the last layer: each logit minus its mean over the batch (sharpness paper, eq. 15).

    gamma is 1 and beta 0; a bias of the head cancels. Training uses the batch's mean, with its gradient; evaluation the
    running mean.
    """

    equation: ClassVar[str] = "f_k = u_k - E[u_k], E over the batch (evaluation: running mean)"
    source: ClassVar[str] = f"{_PAPER}, eq. 15, Theorem 3.3"

    smallest_batch: ClassVar[int] = 2

    def sits(self, site: Site) -> bool:
        return site.position == "logits"

    def layer(self, site: Site) -> nn.Module | None:
        from flbench.models.norm_layers import BatchShift

        return BatchShift(site.shape[0]) if self.sits(site) else None


@NORMS.register("bn-last")
@dataclass(frozen=True)
class BatchNormLast(Norm):
    """Batch normalization in the last layer only: of each logit, affine (sharpness paper, eq. 13).

    Training uses the batch's mean and variance, with their gradients; evaluation running ones (unbiased variance). The
    paper's theory has gamma 1 and beta 0, their initial values here.
    """

    equation: ClassVar[str] = "f_k = gamma_k (u_k - E[u_k]) / sqrt(Var[u_k] + 1e-5) + beta_k, over the batch"
    source: ClassVar[str] = f"{_PAPER}, eq. 13 and 14"

    smallest_batch: ClassVar[int] = 2
    has_batch_norm: ClassVar[bool] = True

    def sits(self, site: Site) -> bool:
        return site.position == "logits"

    def layer(self, site: Site) -> nn.Module | None:
        from flbench.models.norm_layers import BatchNorm

        return BatchNorm(site.shape[0], eps=EPS) if self.sits(site) else None
