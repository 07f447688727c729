"""Balanced softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flbench.methods.base import Context, Method
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("balanced-softmax")
@dataclass(frozen=True)
class BalancedSoftmax(Method):
    """Balanced softmax (Ren et al. 2020) with each client's own class counts: the local loss of FedETF and FedRoD.

    Clients that hold all classes equally often train as in FedAvg. A class that the client does not hold leaves the
    softmax and gets no gradient; with one class a client the loss is 0 and nothing is trained. FedETF (Li et al. 2023)
    is this method with ``head: {name: etf, learned: true}``, but for a linear layer in front of that head.
    """

    equation: ClassVar[str] = "local loss: CE(z_c + log n_c, y), classes with n_c = 0 removed"
    source: ClassVar[str] = "@ren2020balanced; as used by the code of @li2023fedetf"
    elementwise: ClassVar[bool] = True
    shifts_logits: ClassVar[bool] = True

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        """Add the logarithms of the counts; that of 0 is -infinity."""
        return z_BY + ctx.counts_Y.to(z_BY.dtype).log()
