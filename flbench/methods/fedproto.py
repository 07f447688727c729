"""FedProto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Outputs, ServerContext, Tree
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor, nn


@METHODS.register("fedproto")
@dataclass(frozen=True)
class FedProto(Method):
    """FedProto (Tan et al. 2022, Algorithm 1): clients keep their networks and share the mean features of each class.

    local loss: CE(z, y) + lam mean_BD (f - C_y)^2,   C_y: the prototype of class y, no term where nobody has sent one

    Server:     C_y <- mean over the clients that hold y of their mean features after training: by the clients' samples
                of y (``variant: original``, equation 6 without its second division by the number of clients), or each
                client alike (``variant: code``, the authors')
    evaluated:  the class whose prototype is nearest to f

    The distance is that of the authors' code, over samples and features; the paper writes it between local and global
    prototypes. Their code takes the mean features during the last epoch. PFLlib and FL-bench follow it. A prototype
    that no participant of a round holds stays. Before the first one the network's own logits are evaluated. lam = 0
    trains every client alone.
    """

    equation: ClassVar[str] = "local loss: CE(z, y) + lam mean (f - C_y)^2, C_y: mean features of class y over clients"
    source: ClassVar[str] = "@tan2022fedproto, Algorithm 1"
    statistics: ClassVar[Literal["", "mean", "covariance"]] = "mean"
    trains_head: ClassVar[bool] = True
    keeps_statistics: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0)] = 1.0
    variant: Literal["original", "code"] = "original"

    #: There is no shared model, and no server step to scale.
    server_lr: Annotated[float, Field(ge=1, le=1)] = 1.0

    def local_names(self, model: nn.Module) -> frozenset[str]:
        from flbench.models.network import head_names

        return head_names(model) | {*dict(model.named_parameters()), *dict(model.named_buffers())}

    def init_server(self, x: Tree) -> Tree:
        head_YD = x["head.weight"]
        return {"prototypes": 0 * head_YD, "known": 0 * head_YD[:, 0]}

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return x, state

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        prototypes_BD, known_B = (ctx.server[name][batch.labels_B] for name in ("prototypes", "known"))
        distance: Tensor = (known_B.unsqueeze(1) * (batch.features_BD - prototypes_BD) ** 2).mean()
        return self.lam * distance

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        prototypes_BD, known_B = (ctx.server[name][batch.labels_B] for name in ("prototypes", "known"))
        scale_B = known_B.unsqueeze(1) * (2 / batch.features_BD.numel()) * self.lam
        return {"features_BD": (batch.features_BD - prototypes_BD).mul_(scale_B)}

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Send the weight of each class, and its mean features times the weight."""
        assert ctx.means_YD is not None
        counts_Y = ctx.counts_Y.to(ctx.means_YD.dtype)
        weights_Y = counts_Y if self.variant == "original" else counts_Y.clamp(max=1)
        return ctx.client, {"sum": weights_Y.unsqueeze(1) * ctx.means_YD, "weight": weights_Y}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        held_Y = (message["weight"] > 0).to(state["known"].dtype)
        mean_YD = message["sum"] / (message["weight"] + 1 - held_Y).unsqueeze(1)
        prototypes_YD = state["prototypes"] + held_Y.unsqueeze(1) * (mean_YD - state["prototypes"])
        return x, {"prototypes": prototypes_YD, "known": state["known"] + held_Y - state["known"] * held_Y}

    def predict(self, outputs: Outputs, w: Tree, client: Tree, server: Tree) -> Tensor:
        """Return minus the squared distances to the prototypes; a class without one is farther than all others."""
        known_Y = server["known"] > 0
        squared_BY = ((outputs.features_BD.unsqueeze(1) - server["prototypes"]) ** 2).sum(-1)
        farthest = (squared_BY * known_Y).amax(1, keepdim=True) + 1
        near_BY: Tensor = -squared_BY.where(known_Y, farthest)
        logits_BY: Tensor = near_BY.where(known_Y.any(), outputs.logits_BY)
        return logits_BY
