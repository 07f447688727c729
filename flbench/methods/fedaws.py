"""FedAwS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Cohort, Context, Method, ServerContext, Tree
from flbench.registry import METHODS

#: Least length by which features and rows are divided.
EPS = 1e-8

#: Keeps 0 / 0 from the derivative of a length of 0.
TINY = 1e-30


@METHODS.register("fedaws")
@dataclass(frozen=True)
class FedAwS(Method):
    """FedAwS (Yu et al. 2020, Algorithm 1), for clients with one class each, which never see another class's row.

    Client k:   local loss mean_B max(0, margin - cos(f, w_y))^2, which moves the head's rows of its own classes only
    Server:     row c <- mean over the clients that hold class c, by samples; then, with all rows of length 1,
                rows <- rows - spread grad sum_{c != d} max(0, nu - 1 + cos(w_c, w_d))^2, and to length 1 again

    ``spread`` is the paper's lambda times its learning rate; a bias of the head is 0. No setting is FedAvg. Not part of
    it is the paper's form for very many classes, which spreads only the nearest rows. Public codes, none of them its
    authors', have cross-entropy on the clients, half of this distance, a mean over pairs, or many server steps.
    """

    equation: ClassVar[str] = "local loss: max(0, margin - cos(f, w_y))^2, then the server spreads the head's rows out"
    source: ClassVar[str] = "@yu2020fedaws, Algorithm 1"
    elementwise: ClassVar[bool] = True
    trains_head: ClassVar[bool] = True

    margin: Annotated[float, Field(gt=0, le=1)] = 0.9
    nu: Annotated[float, Field(gt=0, le=2)] = 0.9
    spread: Annotated[float, Field(ge=0)] = 0.1

    def loss(self, w: Tree, batch: Batch, ctx: Context) -> Any:
        """Return the squared hinge of the cosine of each sample with its class's row."""
        from torch.nn.functional import cosine_similarity

        cos_B = cosine_similarity(batch.features_BD, w[ctx.head][batch.labels_B], dim=-1, eps=EPS)
        return ((self.margin - cos_B).clamp_min(0) ** 2).mean()

    def loss_gradient(self, w: Tree, batch: Batch, ctx: Context) -> tuple[Any, Tree]:
        """Return it by the cosines of all samples with all rows, of which those of other classes get the weight 0.

        With h = -2 max(0, margin - cos) / B: dL/df = h (w_y / |w_y| - cos f / |f|) / |f|, and the same for the rows.
        Where a length counts as ``EPS``, torch's derivative of it is still that of the length.
        """
        import torch
        from torch.linalg import vector_norm

        f_NBD, rows_NYD = batch.features_BD.movedim(-1, 0), w[ctx.head].movedim(-1, 0)
        labels_N1B = batch.labels_B.movedim(-1, 0).unsqueeze(1)
        length_NB1, length_NY1 = (vector_norm(each, dim=2, keepdim=True) for each in (f_NBD, rows_NYD))
        scale_NB1, scale_NY1 = (length.clamp_min(EPS).reciprocal_() for length in (length_NB1, length_NY1))
        unit_NBD, unit_NYD = f_NBD * scale_NB1, rows_NYD * scale_NY1
        cos_NYB = torch.bmm(unit_NYD, unit_NBD.mT)
        cos_N1B = cos_NYB.gather(1, labels_N1B)
        hinge_1B = (self.margin - cos_N1B.movedim(0, -1)).clamp_min_(0)
        weight_N1B = hinge_1B.movedim(-1, 0) * (-2 / f_NBD.shape[1])
        weight_NYB = cos_NYB.new_zeros(cos_NYB.shape).scatter_(1, labels_N1B, weight_N1B)
        along_NB1 = (weight_N1B * cos_N1B).mT / length_NB1.mul_(scale_NB1).clamp_min_(TINY)
        along_NY1 = (weight_NYB * cos_NYB).sum(2, keepdim=True) / length_NY1.mul_(scale_NY1).clamp_min_(TINY)
        of_f_NBD = torch.bmm(weight_NYB.mT, unit_NYD).addcmul_(unit_NBD, along_NB1, value=-1).mul_(scale_NB1)
        of_rows_NYD = torch.bmm(weight_NYB, unit_NBD).addcmul_(unit_NYD, along_NY1, value=-1).mul_(scale_NY1)
        loss = hinge_1B.squeeze(0).square_().mean(0)
        return loss, {"features_BD": of_f_NBD.movedim(0, -1), ctx.head: of_rows_NYD.movedim(0, -1)}

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Keep other classes' rows from weight decay."""
        return {**g, ctx.head: g[ctx.head] * (ctx.counts_Y > 0)[:, None]}

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.client, {"held": (ctx.counts_Y > 0).to(w[ctx.head].dtype)}

    def message_weights(self, cohort: Cohort) -> Sequence[float]:
        """Weigh by samples: the message becomes the share of the holders of each class."""
        return cohort.share

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        rows_YD = delta[ctx.head] / message["held"].clamp_min(1e-12)[:, None]
        x, state = super().server_step(x, {**delta, ctx.head: rows_YD}, message, state, ctx)
        unit_YD = x[ctx.head] / x[ctx.head].norm(dim=1, keepdim=True)
        near_YY = (self.nu - 1 + unit_YD @ unit_YD.T).clamp_min(0).fill_diagonal_(0)
        moved_YD = unit_YD - 4 * self.spread * near_YY @ unit_YD
        biases = {name: 0 * x[name] for name in {ctx.head.removesuffix("weight") + "bias"} & x.keys()}
        return {**x, **biases, ctx.head: moved_YD / moved_YD.norm(dim=1, keepdim=True)}, state
