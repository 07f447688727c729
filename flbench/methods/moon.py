"""MOON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Tree
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

#: Least length by which features are divided.
EPS = 1e-8


@METHODS.register("moon")
@dataclass(frozen=True)
class Moon(Method):
    """MOON (Li et al. 2021, Algorithm 1): pulls features to those of the server's model, away from the client's last.

    local loss: CE(z, y) + mu mean_B log(1 + e^((p - s) / tau)),   s = cos(f, f_server),   p = cos(f, f_previous)

    f is the input of the head; the paper and its code put a projection before it (``head: projection``). f_previous are
    the features of the client's own weights and running statistics after the last round in which it took part, and of
    the server's initial ones before (in the authors' code, of initial weights of its own). Both teachers are in
    evaluation mode and do not change during a round. In the first round of a run they are equal and the term has no
    gradient, as in the code, which then has no previous one. mu = 0 is FedAvg. The paper's mu is 5 or 1, by data set.
    """

    equation: ClassVar[str] = "local loss: CE(z, y) + mu log(1 + exp((cos(f, f_previous) - cos(f, f_server)) / tau))"
    source: ClassVar[str] = "@li2021moon, Algorithm 1"
    elementwise: ClassVar[bool] = True

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
            normalize(each.features_BD, dim=-1, eps=EPS)
            for each in (batch, batch.teachers["server"], batch.teachers["previous"])
        )
        # cos(f, f_previous) - cos(f, f_server) in one product: the gradient of two cosines takes twice as long.
        difference_B = (own_BD * (previous_BD - server_BD)).sum(-1)
        return self.mu * softplus(difference_B / self.tau).mean()

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        """Return mu / (tau B |f|) sigmoid(d / tau) (r - d f / |f|), d = f r / |f|, r the teachers' difference.

        Features shorter than ``EPS`` are divided by ``EPS``, which is constant: there the second part is 0.
        """
        from torch.linalg import vector_norm

        every = batch, batch.teachers["server"], batch.teachers["previous"]
        own_NBD, server_NBD, previous_NBD = (each.features_BD.movedim(-1, 0) for each in every)
        length_NB1, server_NB1, previous_NB1 = (
            vector_norm(each_NBD, dim=2, keepdim=True) for each_NBD in (own_NBD, server_NBD, previous_NBD)
        )
        scale_NB1 = 1 / length_NB1.clamp_min(EPS)
        towards_NBD = previous_NBD / previous_NB1.clamp_min(EPS)
        towards_NBD.addcdiv_(server_NBD, server_NB1.clamp_min(EPS), value=-1)
        difference_NB1 = (own_NBD * towards_NBD).sum(2, keepdim=True).mul_(scale_NB1)
        # A sigmoid by exponentials, which torch rounds alike at every place of a stack.
        share_B1 = 1 / (1 + (difference_NB1.movedim(0, -1) / -self.tau).exp_())
        share_B1 = share_B1.mul_(1 / len(share_B1)).mul_(self.mu).div_(self.tau)
        along_NB1 = difference_NB1 * scale_NB1 * (length_NB1 >= EPS)
        towards_NBD.addcmul_(own_NBD, along_NB1, value=-1).mul_(share_B1.movedim(-1, 0) * scale_NB1)
        return {"features_BD": towards_NBD.movedim(0, -1)}

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return {**w, **ctx.buffers}, {}
