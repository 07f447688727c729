"""FedSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, tmap
from flbench.methods.fedsam import TINY
from flbench.registry import METHODS


@METHODS.register("fedspeed")
@dataclass(frozen=True)
class FedSpeed(Method):
    """FedSpeed (Sun et al. 2023, Algorithm 1): FedDyn's prox-correction with gradients at perturbed weights.

    Client k:   w <- w - lr (g(w + rho g(w)) + mu (w - x + h_k)),   h_k <- h_k + w - x
    Server:     x <- mean_k (w_k + h_k),   over the participants

    h_k is -1/mu times the paper's prox-correction term; mu is 1/lambda there. Its quasi-gradient
    (1 - alpha) g(w) + alpha g(w + rho g(w)) is the one at alpha = 1, the only one that its authors' code has.
    - ``original``: the paper's equations;
    - ``code``, its authors' code (FL-Simulator): rho g(w) / ||g(w)|| in place of rho g(w), and h is the mean over all
      clients, as in FedDyn. rho = 0 is then FedDyn with alpha = mu and equal weights.
    """

    equation: ClassVar[str] = (
        "w <- w - lr (g(w + rho g(w)) + mu (w - x + h_k)), h_k += w_k - x, x <- mean_k (w_k + h_k)"
    )
    source: ClassVar[str] = "@sun2023fedspeed, Algorithm 1"
    elementwise: ClassVar[bool] = True

    rho: Annotated[float, Field(ge=0)] = 0.1
    mu: Annotated[float, Field(gt=0)] = 0.1
    variant: Literal["original", "code"] = "original"

    def init_server(self, x: Tree) -> Tree:
        """Return the mean of all h_k, which ``original`` does not use."""
        return tmap(lambda a: 0 * a, x) if self.variant == "code" else {}

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Return the weights after a step of gradient ascent."""
        scale = self.rho * (1 / ctx.norm(g).clamp_min(TINY)) if self.variant == "code" else self.rho
        return tmap(lambda w, g: w + scale * g, w, g)

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda g, w, x, h: (w - x).add_(h).mul_(self.mu).add_(g), g, w, ctx.x, ctx.client)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Move h_k by the round's change; in ``original`` the server needs it, too."""
        h = tmap(lambda h, w, x: h + (w - x), ctx.client, w, ctx.x)
        return h, h if self.variant == "original" else {}

    def upload_bytes(self, x: Tree) -> int:
        """Of two vectors of ``original`` the server needs the sum alone: the message counts, the change does not."""
        return 0 if self.variant == "original" else super().upload_bytes(x)

    def delta_weights(self, cohort: Cohort) -> Sequence[float]:
        return [1 / len(cohort.share)] * len(cohort.share)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        """Add the mean change and h: that of the participants, or of all clients."""
        state = tmap(lambda h, d: h + ctx.participation * d, state, delta) if self.variant == "code" else state
        h = state if self.variant == "code" else message
        return tmap(lambda a, d, h: a + self.server_lr * (d + h), x, delta, h), state
