"""SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flbench.methods.base import Context, Method, Tree, tmap
from flbench.registry import METHODS


@METHODS.register("scaffold")
@dataclass(frozen=True)
class Scaffold(Method):
    """SCAFFOLD with control variates of option II (Karimireddy et al. 2020, Algorithm 1, eqs. 3 to 5).

    Client i:   w <- w - lr (g(w) - c_i + c),   K times;   c_i' = c_i - c + (x - w) / (K lr)
    Server:     x <- x + server_lr * delta,   c <- c + |S|/N * mean_i (c_i' - c_i)

    All controls start at zero, so round one is FedAvg's, and under full participation mean_i c_i = c for ever. The
    correction enters the gradient, before momentum: applied after it, (x - w) / (K lr) would be about
    1 / (1 - momentum) times a gradient. delta is weighted by sample counts like every method's here; the paper weighs
    clients equally.
    """

    broadcasts_state: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    def init_server(self, x: Tree) -> Tree:
        """All controls start at zero: c = 0."""
        return tmap(lambda a: 0 * a, x)

    def init_client(self, x: Tree) -> Tree:
        """All controls start at zero: c_i = 0."""
        return tmap(lambda a: 0 * a, x)

    def direction(self, g: Tree, ctx: Context) -> Tree:
        """Correct the gradient: g - c_i + c."""
        return tmap(lambda g, ci, c: g - ci + c, g, ctx.client, ctx.server)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Option II's new control, and its change as the message."""
        new = tmap(lambda ci, c, x, w: ci - c + (x - w) / (ctx.steps * ctx.lr), ctx.client, ctx.server, ctx.x, w)
        return new, tmap(lambda after, before: after - before, new, ctx.client)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, participation: float) -> tuple[Tree, Tree]:
        """FedAvg's step, and c moves by the participants' share of the mean change."""
        x, _ = super().server_step(x, delta, message, state, participation)
        return x, tmap(lambda c, change: c + participation * change, state, message)
