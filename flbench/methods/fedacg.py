"""FedACG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("fedacg")
@dataclass(frozen=True)
class FedACG(Method):
    """FedACG (Kim et al. 2024, Algorithm 1): clients start where the server's momentum would lead.

    Client k:   starts at y = x + server_lr lam m, local loss CE(z, y) + beta/2 ||w - y||^2
    Server:     m <- lam m + delta,   x <- x + server_lr m;   m = 0 at the start

    delta is the change from y. lam = 0 is FedProx with mu = beta, lam = beta = 0 is FedAvg. The authors' code adds
    beta ||w - y||^2, without the half, with beta = 0.001, and averages clients equally. x is evaluated, not y.
    """

    equation: ClassVar[str] = (
        "y = x + server_lr lam m, local loss: CE + beta/2 ||w - y||^2, "
        "m <- lam m + sum_k m_k/m (w_k - y), x <- x + server_lr m"
    )
    source: ClassVar[str] = "@kim2024fedacg, Algorithm 1"
    elementwise: ClassVar[bool] = True
    rounds_as_autograd: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0, lt=1)] = 0.85
    beta: Annotated[float, Field(ge=0)] = 0.001

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return the lookahead y; the clients need no m."""
        return tmap(lambda a, m: a + self.server_lr * self.lam * m, x, state), {}

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        squared: Tensor | float = sum(((w[name] - x) ** 2).sum() for name, x in ctx.x.items())  # exact: tensors
        return self.beta / 2 * squared

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        return {name: self.beta * (w[name] - x) for name, x in ctx.x.items()}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        m = tmap(lambda m, d: self.lam * m + d, state, delta)
        return tmap(lambda a, m: a + self.server_lr * m, x, m), m
