"""MOON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Tree
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("moon")
@dataclass(frozen=True)
class Moon(Method):
    """MOON (Li et al. 2021, Algorithm 1): pulls features to those of the server's model, away from the client's last.

    local loss: CE(z, y) + mu mean_B -log(e^(s/tau) / (e^(s/tau) + e^(p/tau))),   s = cos(f, f_server),
    p = cos(f, f_previous)

    f is the input of the head; the paper and its code put a projection before it (``head: projection``). f_previous are
    the features of the client's own weights and running statistics after the last round in which it took part, and of
    the server's initial ones before (in the authors' code, of initial weights of its own). Both teachers are in
    evaluation mode and do not change during a round. In the first round of a run they are equal and the term has no
    gradient, as in the code, which then has no previous one. mu = 0 is FedAvg. The paper's mu is 5 or 1, by data set.
    """

    equation: ClassVar[str] = "local loss: CE(z, y) + mu log(1 + exp((cos(f, f_previous) - cos(f, f_server)) / tau))"
    source: ClassVar[str] = "@li2021moon, Algorithm 1"

    mu: Annotated[float, Field(ge=0)] = 1.0
    tau: Annotated[float, Field(gt=0)] = 0.5

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return {**x, **buffers}

    def teachers(self, ctx: Context) -> dict[str, Tree]:
        """Return the server's weights and the client's own of its last round."""
        return {"server": ctx.x, "previous": ctx.client}

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        """Return mu times the contrastive loss; -log of the softmax of two is a softplus of the difference."""
        from torch.nn.functional import normalize, softplus

        own_BD, server_BD, previous_BD = (
            normalize(each.features_BD, dim=-1, eps=1e-8)
            for each in (batch, batch.teachers["server"], batch.teachers["previous"])
        )
        # cos(f, f_previous) - cos(f, f_server) in one product: the gradient of two cosines takes twice as long.
        difference_B = (own_BD * (previous_BD - server_BD)).sum(-1)
        return self.mu * softplus(difference_B / self.tau).mean()

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return {**w, **ctx.buffers}, {}
