"""FedNova."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flbench.methods.base import Cohort, Method
from flbench.registry import METHODS
from flbench.sums import sum_in_order

if TYPE_CHECKING:
    from flbench.config import Federated


@METHODS.register("fednova")
@dataclass(frozen=True)
class FedNova(Method):
    """FedNova (Wang et al. 2020, eq. 10 and Algorithm 1): averages the clients' changes normalised by their steps.

    d_k = (w_k - x) / a_k,   x <- x + server_lr (sum_k p_k a_k) (sum_k p_k d_k),   p_k = m_k / sum_j m_j

    a_k is the sum of the weights with which client k's gradients enter w_k - x, in units of the learning rate: its
    number of steps K, with local momentum rho (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho). Where all clients take
    equally many steps it is FedAvg, so it needs ``local_epochs`` or steps that are drawn.
    """

    equation: ClassVar[str] = "x <- x + server_lr (sum_k p_k a_k) sum_k p_k (w_k - x) / a_k, a_k = K_k (no momentum)"
    source: ClassVar[str] = "@wang2020fednova, eq. 10 and Algorithm 1"

    assumes_plain_momentum: ClassVar[bool] = True

    def same_as(self, experiment: Federated) -> Method:
        """Return FedAvg where all clients take the same number of steps."""
        return Method(self.server_lr) if isinstance(experiment.local_steps, int) else self

    def delta_weights(self, cohort: Cohort) -> Sequence[float]:
        share, momentum = cohort.share, cohort.momentum
        a = [(k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum) for k in cohort.steps]
        effective = sum_in_order(p * a_k for p, a_k in zip(share, a, strict=True))
        return [p * effective / a_k for p, a_k in zip(share, a, strict=True)]
