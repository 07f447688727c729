"""FedDC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS


@METHODS.register("feddc")
@dataclass(frozen=True)
class FedDC(Method):
    """FedDC (Gao et al. 2022): each client has a drift h_k of its own, and SCAFFOLD's correction.

    Client k:   w <- w - lr (g(w) + alpha_k (w - x + h_k) - c_k + c / r_k),   K times;   h_k <- h_k + w - x,
                c_k' = c_k - c / r_k + (x - w) / (K lr)
    Server:     x <- mean_k w_k + mean of all h_k,   c <- c + |S|/N mean_k r_k (c_k' - c_k)

    All h and c start at 0. The equations are those of its authors' code; the paper has the client's last change over
    K lr in place of c_k. Here lr and K are the client's own of this round, in the code the first round's lr and the
    mean client's K. x is evaluated.
    - ``samples``: r_k = N m_k / M and alpha_k = alpha / r_k, as in the code;
    - ``equal``: r_k = 1.
    """

    equation: ClassVar[str] = (
        "w <- w - lr (g + alpha_k (w - x + h_k) - c_k + c/r_k), h_k += w_k - x, "
        "c_k' = c_k - c/r_k + (x - w_k) / (K lr), x <- mean_k w_k + mean h, c <- c + |S|/N mean_k r_k (c_k' - c_k)"
    )
    source: ClassVar[str] = "@gao2022feddc, and its authors' code"
    elementwise: ClassVar[bool] = True

    alpha: Annotated[float, Field(gt=0)] = 0.1
    weighting: Literal["samples", "equal"] = "samples"

    def init_server(self, x: Tree) -> Tree:
        """Return the mean drift of all clients and c: ``h/<name>`` and ``c/<name>``."""
        return {f"{part}/{name}": 0 * a for part in "hc" for name, a in x.items()}

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        """Return alpha_k h_k - c_k, all that a client needs of the two."""
        return tmap(lambda a: 0 * a, x)

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return x, {name: state[f"c/{name}"] for name in x}

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        alpha, size = self._scales(ctx)
        return tmap(
            lambda g, w, x, own, c: own.addcmul(w - x, alpha).addcdiv_(c, size).add_(g),
            *(g, w, ctx.x, ctx.client, ctx.server),
        )

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Move h_k and c_k by the round's change; the message is r_k times the change of c_k."""
        alpha, size = self._scales(ctx)
        back = tmap(lambda x, w: x - w, ctx.x, w)
        change = tmap(lambda d, c: (d / ctx.steps).div_(ctx.lr).addcdiv_(c, size, value=-1), back, ctx.server)
        own = tmap(lambda own, d, c: own.addcmul(d, alpha, value=-1).sub_(c), ctx.client, back, change)
        return own, tmap(lambda c: c * size, change)

    def _scales(self, ctx: Context) -> tuple[Any, Any]:
        """Return alpha_k and r_k."""
        size = ctx.relative_size if self.weighting == "samples" else ctx.relative_size.new_ones(())
        return self.alpha * (1 / size), size

    def delta_weights(self, cohort: Cohort) -> Sequence[float]:
        """Return equal weights: the samples are in alpha_k and r_k."""
        return [1 / len(cohort.share)] * len(cohort.share)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        """Move h and c by the participants' part of the means over all clients, and add h."""
        h = {name: state[f"h/{name}"] + ctx.participation * d for name, d in delta.items()}
        c = {f"c/{name}": state[f"c/{name}"] + ctx.participation * change for name, change in message.items()}
        after = tmap(lambda a, d, h: a + self.server_lr * (d + h), x, delta, h)
        return after, {f"h/{name}": leaf for name, leaf in h.items()} | c
