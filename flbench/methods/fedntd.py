"""FedNTD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Tree
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("fedntd")
@dataclass(frozen=True)
class FedNTD(Method):
    """FedNTD (Lee et al. 2022): distils what the server's model says about the classes that are not true.

    local loss: CE(z, y) + beta mean_B sum_{c != y} q_c log(q_c / p_c),   q = softmax_{c != y}(z_server / tau),
    p = softmax_{c != y}(z / tau)

    The server's model is in evaluation mode and gets no gradient. beta = 0 is FedAvg. The authors' code multiplies the
    term by tau^2, which the paper does not; at their tau = 1 both are the same, and beta takes the factor elsewhere.
    With two classes the term is 0.
    """

    equation: ClassVar[str] = "local loss: CE(z, y) + beta KL(softmax(z_server/tau) || softmax(z/tau)) without class y"
    source: ClassVar[str] = "@lee2022fedntd"
    elementwise: ClassVar[bool] = True

    beta: Annotated[float, Field(ge=0)] = 1.0
    tau: Annotated[float, Field(gt=0)] = 1.0

    def teachers(self, ctx: Context) -> dict[str, Tree]:
        return {"server": ctx.x}

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        import torch

        true_BY = batch.labels_B[:, None] == torch.arange(batch.logits_BY.shape[1], device=batch.labels_B.device)
        p_BY, q_BY = (
            (z_BY / self.tau).masked_fill(true_BY, float("-inf")).log_softmax(1)
            for z_BY in (batch.logits_BY, batch.teachers["server"].logits_BY)
        )
        # The true class is removed from both logarithms: their difference would be infinity - infinity.
        terms_BY = q_BY.exp() * (q_BY.masked_fill(true_BY, 0) - p_BY.masked_fill(true_BY, 0))
        return self.beta * terms_BY.sum(1).mean()

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        """Return beta / (tau B) (p - q), in which both are 0 for the true class."""
        labels_N1B = batch.labels_B.movedim(-1, 0).unsqueeze(1)
        p_NYB, q_NYB = (
            (z_BY / self.tau).movedim(-1, 0).mT.scatter_(1, labels_N1B, float("-inf")).softmax(1)
            for z_BY in (batch.logits_BY, batch.teachers["server"].logits_BY)
        )
        difference_BY = p_NYB.sub_(q_NYB).mT.movedim(0, -1)
        return {"logits_BY": difference_BY.mul_(1 / len(difference_BY)).mul_(self.beta).div_(self.tau)}
