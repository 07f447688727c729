"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flbench.methods.base import Cohort, Context, Method, ServerContext, Tree, Variant, tmap
from flbench.registry import METHODS

#: Variants that correct the step after momentum instead of the gradient.
AFTER_MOMENTUM = ("niid-bench", "flower")


def _corrected(g: Any, ci: Any, c: Any) -> Any:
    return g - ci + c


@METHODS.register("scaffold")
@dataclass(frozen=True)
class Scaffold(Method):
    """SCAFFOLD with control variates of option II (Karimireddy et al. 2020, Algorithm 1, eqs. 3 to 5).

    Client i:   w <- w - lr (g(w) - c_i + c),   K times;   c_i' = c_i - c + (x - w) / (K lr)
    Server:     x <- x + server_lr * delta,   c <- c + |S|/N * mean_i (c_i' - c_i)

    All controls start at zero, so round one is FedAvg's up to the weights. The correction enters the gradient, before
    momentum, except where a variant says otherwise. With momentum, (x - w) / (K lr) is about 1 / (1 - momentum) times
    a gradient. A correction of that size fits the step after momentum. Before it, each round of many
    steps multiplies c_i - c by about 1 - 1 / (1 - momentum): above momentum 0.5 the original can diverge.

    The variants differ in the clients' weights as well:

    - ``original``: all equally, in delta and in the mean of controls, so that under full participation mean_i c_i = c;
    - ``text``, the label-skew paper's text (option II, and otherwise FedAvg): delta by samples, controls equally;
    - ``code``, the label-skew paper's code: both by samples. As published its controls stay 0 by a mistake (the new
      ones are bound to a loop variable), so that its SCAFFOLD is FedAvg; the paper's rows of both agree to 2 points;
    - ``niid-bench``, the code of NIID-Bench (Li et al. 2022): w <- w - lr (momentum(g) - c_i + c), delta by samples,
      controls equally;
    - ``flower``, the reproduction of NIID-Bench in Flower's baselines: the same, with both by samples.

    Version 2: version 1 was ``text``.
    """

    version: ClassVar[int] = 2
    equation: ClassVar[str] = (
        "w <- w - lr (g - c_k + c), c_k' = c_k - c + (x - w_k) / (K lr), "
        "x <- x + server_lr mean_k (w_k - x), c <- c + |S|/N mean_k (c_k' - c_k)"
    )
    source: ClassVar[str] = "@karimireddy2020scaffold, Algorithm 1 with option II"
    elementwise: ClassVar[bool] = True

    variant: Literal[Variant, "niid-bench", "flower"] = "original"

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return x, state

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return g if self.variant in AFTER_MOMENTUM else tmap(_corrected, g, ctx.client, ctx.server)

    def step(self, w: Tree, moved: Tree, ctx: Context) -> Tree:
        """Correct the step, where the variant does so after momentum."""
        return tmap(_corrected, moved, ctx.client, ctx.server) if self.variant in AFTER_MOMENTUM else moved

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Return option II's new control, and its change as the message."""
        # Two divisions: a product of the two numbers would be rounded otherwise where they are tensors.
        new = tmap(lambda ci, c, x, w: ci - c + (x - w) / ctx.steps / ctx.lr, ctx.client, ctx.server, ctx.x, w)
        return new, tmap(lambda after, before: after - before, new, ctx.client)

    def delta_weights(self, cohort: Cohort) -> Sequence[float]:
        return [1 / len(cohort.share)] * len(cohort.share) if self.variant == "original" else cohort.share

    def message_weights(self, cohort: Cohort) -> Sequence[float]:
        return cohort.share if self.variant in ("code", "flower") else super().message_weights(cohort)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        """Take FedAvg's step, and move c by the participants' share of the mean change."""
        x, _ = super().server_step(x, delta, message, state, ctx)
        return x, tmap(lambda c, change: c + ctx.participation * change, state, message)
