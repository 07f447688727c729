"""FedLC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Context, Method
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("fedlc")
@dataclass(frozen=True)
class FedLC(Method):
    """FedLC (Zhang et al. 2022): calibrates a client's logits by z_c - tau n_c^(-1/4), n_c its samples of class c.

    The margin of a class that the client does not hold is infinite: the class leaves the softmax and gets no gradient.
    This holds for every tau. At tau = 0, FedLC is FedAvg on clients that hold all classes, and FedAvg with a softmax
    over the client's own classes on others. With one class a client the softmax has one term, the loss is 0 and nothing
    is trained: the label-skew paper's 10 % there is the accuracy of the initial weights. Text and code agree on this
    formula and tau = 1; as published the code fails on its first batch (it uses its networks' pair of features and
    logits as logits).
    """

    equation: ClassVar[str] = "local loss: CE(z_c - tau n_c^(-1/4), y), classes with n_c = 0 removed"
    source: ClassVar[str] = "@zhang2022fedlc"
    elementwise: ClassVar[bool] = True
    shifts_logits: ClassVar[bool] = True

    tau: Annotated[float, Field(ge=0)] = 1.0

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        """Subtract the margins, which are infinite for classes that the client does not hold."""
        margin_Y = self.tau * ctx.counts_Y.to(z_BY.dtype) ** -0.25
        return z_BY - margin_Y.masked_fill(ctx.counts_Y == 0, float("inf"))
