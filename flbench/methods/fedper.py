"""FedPer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flbench.methods.base import Method
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import nn


@METHODS.register("fedper")
@dataclass(frozen=True)
class FedPer(Method):
    """FedPer (Arivazhagan et al. 2019, Algorithm 1): FedAvg of the body; each client keeps a head of its own.

    The head is the last layer (``is_of_head``): the paper's one personalization layer, without the blocks that it also
    keeps on the clients in some runs. All heads start from the same weights, as in the public re-implementations
    (FL-bench, fluke); the paper draws one for each client. Batch normalization is shared, statistics included.
    """

    equation: ClassVar[str] = "x <- x + server_lr sum_k m_k/m (w_k - x) for the body; the head stays on the client"
    source: ClassVar[str] = "@arivazhagan2019fedper, Algorithm 1"
    trains_head: ClassVar[bool] = True

    def local_names(self, model: nn.Module) -> frozenset[str]:
        from flbench.models.network import head_names

        return head_names(model)
