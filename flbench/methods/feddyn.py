"""FedDyn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS


@METHODS.register("feddyn")
@dataclass(frozen=True)
class FedDyn(Method):
    """FedDyn (Acar et al. 2021, Algorithm 1): its fixed point is stationary for the global loss. No alpha is FedAvg.

    Client k:   w <- w - lr (g(w) + alpha_k (w - x + c_k)),   c_k <- c_k + w - x
    Server:     h <- h + |S|/N delta,   x <- x + server_lr (delta + h),   delta = mean_k (w_k - x)

    c_k is -1/alpha_k times the paper's gradient; h, the mean of all c_k, is -1/alpha times its h. Both start at 0. At a
    fixed point no client moves: grad f_k(x) = -alpha_k c_k with sum_k c_k = 0, so sum_k grad f_k(x) / alpha_k = 0. x is
    evaluated; the authors' code evaluates the mean of all clients' last models, too, and plots that one.
    - ``samples``: alpha_k = alpha M / (N m_k), as in the authors' code, gives FedAvg's loss sum_k m_k/M f_k;
    - ``equal``: alpha_k = alpha, as in the paper's text and in most other codes, gives mean_k f_k.
    """

    equation: ClassVar[str] = "w <- w - lr (g + alpha_k (w - x + c_k)), c_k += w_k - x, x <- mean_k w_k + mean c"
    source: ClassVar[str] = "@acar2021feddyn, Algorithm 1"
    elementwise: ClassVar[bool] = True
    alpha: Annotated[float, Field(gt=0)] = 0.01
    weighting: Literal["samples", "equal"] = "samples"

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Add the gradient of the dynamic regularizer; in place, because new memory takes longer than arithmetic."""
        alpha = self.alpha * (1 / ctx.relative_size if self.weighting == "samples" else 1)
        return tmap(lambda g, w, x, c: (w - x).add_(c).mul_(alpha).add_(g), g, w, ctx.x, ctx.client)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Move c_k by the round's change; the server has the change already."""
        return tmap(lambda c, w, x: c + (w - x), ctx.client, w, ctx.x), {}

    def delta_weights(self, cohort: Cohort) -> Sequence[float]:
        """Return equal weights: the samples are in alpha_k."""
        return [1 / len(cohort.share)] * len(cohort.share)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        """Move h by the participants' part of the mean change of all clients, and add it."""
        h = tmap(lambda h, d: h + ctx.participation * d, state, delta)
        return tmap(lambda a, d, h: a + self.server_lr * (d + h), x, delta, h), h
