"""FedExP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS


@METHODS.register("fedexp")
@dataclass(frozen=True)
class FedExP(Method):
    """FedExP (Jhunjhunwala et al. 2023, Algorithm 1): the server's step grows with the spread of the clients' changes.

    x <- x + s delta,   s = max(1, sum_k p_k ||w_k - x||^2 / (2 (||delta||^2 + eps))),   p_k = m_k / sum_j m_j

    The mean of the last two x is evaluated, because the iterates oscillate. As eps grows, s = 1 and x is FedAvg's. The
    paper weighs clients equally, its code by samples; the code's eps is the number of participants times this one, and
    decays by 0.998^2 a round, as the square of its learning rate; it is 1e-3, but 0.1 on EMNIST. After the first round
    the code evaluates x itself.
    """

    equation: ClassVar[str] = (
        "x <- x + max(1, sum_k p_k ||w_k - x||^2 / (2 (||delta||^2 + eps))) delta, evaluated: mean of the last two x"
    )
    source: ClassVar[str] = "@jhunjhunwala2023fedexp, Algorithm 1"

    #: The step is adaptive: there is none to scale.
    server_lr: Annotated[float, Field(ge=1, le=1)] = 1.0
    eps: Annotated[float, Field(gt=0)] = 1e-3

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: a.clone(), x)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        squared: Any = sum(((w[name] - x) ** 2).sum() for name, x in ctx.x.items())  # exact: tensors
        return ctx.client, {"squared": squared}

    def message_weights(self, cohort: Cohort) -> Sequence[float]:
        """Weigh lengths as FedAvg weighs changes."""
        return cohort.share

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        of_mean: Any = sum((d**2).sum() for d in delta.values())  # exact: tensors
        step = (message["squared"] / (2 * (of_mean + self.eps))).clamp_min(1)
        return tmap(lambda a, d: a + step * d, x, delta), self.init_server(x)

    def evaluated(self, x: Tree, state: Tree) -> Tree:
        """Return the mean of the last two iterates."""
        return tmap(lambda a, before: (a + before) / 2, x, state)
