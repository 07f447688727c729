"""FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Tree
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

    from flbench.config import Federated


@METHODS.register("fedprox")
@dataclass(frozen=True)
class FedProx(Method):
    """FedProx (Li et al. 2020, Algorithm 2): adds mu/2 ||w - x||^2 to the local loss; mu = 0 is FedAvg.

    Parameters that stay on the client have no x, and no penalty. The label-skew paper's text sets mu = 0.01. Its
    published code adds the value of the penalty a second time, without a gradient, which does not change training; as
    published it fails on its first batch (it uses its networks' pair of features and logits as logits).
    """

    equation: ClassVar[str] = "local loss: CE(z, y) + mu/2 ||w - x||^2"
    source: ClassVar[str] = "@li2020fedprox, Algorithm 2"
    elementwise: ClassVar[bool] = True
    rounds_as_autograd: ClassVar[bool] = True

    mu: Annotated[float, Field(ge=0)] = 0.01

    def same_as(self, experiment: Federated) -> Method:
        """Return FedAvg for one local step, at whose weights w = x the penalty has no gradient, and for mu = 0."""
        return Method(self.server_lr) if experiment.local_steps == 1 or self.mu == 0 else self

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        squared: Tensor | float = sum(((w[name] - x) ** 2).sum() for name, x in ctx.x.items())  # exact: tensors
        return self.mu / 2 * squared

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        return {name: self.mu * (w[name] - x) for name, x in ctx.x.items()}
