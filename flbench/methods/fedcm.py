"""FedCM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS


@METHODS.register("fedcm")
@dataclass(frozen=True)
class FedCM(Method):
    """FedCM (Xu et al. 2021): every local step follows the last round's mean step, too.

    Client k:   w <- w - lr (alpha g(w) + (1 - alpha) D),   K times
    Server:     D <- sum_k m_k/m (x - w_k) / (K lr),   x <- x + server_lr delta;   D = 0 at the start

    alpha = 1 is FedAvg. Its authors weigh clients equally; here samples weigh, as in FedAvg, and each client divides by
    its own K. Weight decay is part of g; in one public code it is not scaled by alpha. D is a momentum over rounds, to
    which local momentum rho is added: it makes D about 1 / (1 - rho) times as long, which diverges where
    (1 - alpha) / (1 - rho) is above 1. Its authors use none.

    Version 2: version 1 counted the change as sent besides the mean step, which is the change over K lr.
    """

    version: ClassVar[int] = 2
    equation: ClassVar[str] = "w <- w - lr (alpha g + (1 - alpha) D), D <- sum_k m_k/m (x - w_k) / (K lr)"
    source: ClassVar[str] = "@xu2021fedcm"
    elementwise: ClassVar[bool] = True

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.1

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return x, state

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Return the mean of gradient and D; products of alpha alone have the same bits where it is a tensor."""
        return tmap(lambda g, d: self.alpha * g + (d - self.alpha * d), g, ctx.server)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Return the mean step of the round, in units of the learning rate, as the message."""
        return ctx.client, tmap(lambda x, w: (x - w) / ctx.steps / ctx.lr, ctx.x, w)

    def upload_bytes(self, x: Tree) -> int:
        """Return 0: the change is K lr times the message."""
        return 0

    def message_weights(self, cohort: Cohort) -> Sequence[float]:
        """Weigh steps as FedAvg weighs changes."""
        return cohort.share

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return super().server_step(x, delta, message, state, ctx)[0], message
