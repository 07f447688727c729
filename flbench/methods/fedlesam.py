"""FedLESAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Context, Method, ServerContext, Tree, tmap
from flbench.methods.fedsam import TINY
from flbench.registry import METHODS


@METHODS.register("fedlesam")
@dataclass(frozen=True)
class FedLESAM(Method):
    """FedLESAM (Fan et al. 2024): FedSAM along the global change of the weights; rho = 0 is FedAvg.

    w <- w - lr g(w + rho d_k / ||d_k||),   d_k = x_k - x

    x_k are the server's weights that the client received when it took part last, at first the initial ones; a d_k of 0
    does not perturb. The perturbation is the same in all steps of a round.
    - ``original``: the paper's equations;
    - ``code``, its authors' code: d is the server's last step backwards, for all clients, over the sum of the norms of
      its leaves. As published the code takes numbers of the flattened step where it means leaves, so that it adds one
      number to all weights of a leaf; here they are leaves.

    A step takes one pass, as in both: the perturbation needs no gradient at w. Batch statistics are those of that pass.
    """

    equation: ClassVar[str] = (
        "w <- w - lr g(w + rho d_k / ||d_k||), d_k = x_k - x, x_k the x that client k received last"
    )
    source: ClassVar[str] = "@fan2024fedlesam"
    elementwise: ClassVar[bool] = True
    perturbs_by_gradient: ClassVar[bool] = False

    rho: Annotated[float, Field(ge=0)] = 0.1
    variant: Literal["original", "code"] = "original"

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x) if self.variant == "code" else {}

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return {} if self.variant == "code" else x

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return x, state

    def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Return the weights at distance rho against the global change."""
        if self.variant == "code":
            towards = ctx.server
            norms = [ctx.norm({name: leaf}) for name, leaf in towards.items()]
            norm: Any = sum(norms[1:], norms[0])  # exact: tensors
        else:
            towards = tmap(lambda before, x: before - x, ctx.client, ctx.x)
            norm = ctx.norm(towards)
        scale = self.rho * (1 / norm.clamp_min(TINY))
        return tmap(lambda w, d: w.addcmul(d, scale), w, towards)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Keep the weights that the client received; in a stack they are broadcast over the clients."""
        return ctx.client if self.variant == "code" else tmap(lambda x, w: x.expand_as(w), ctx.x, w), {}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        """Take FedAvg's step, and keep it with the other sign."""
        after, _ = super().server_step(x, delta, message, state, ctx)
        return after, tmap(lambda a, b: a - b, x, after) if self.variant == "code" else state
