"""FedVLS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Tree
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

#: What variant ``code`` adds to the share of a class before its logarithm, so that classes of share 0 have one.
EPS = 1e-9


@dataclass(frozen=True)
class _Shares:
    """A client's share of its samples a class, and the classes that it lacks."""

    p_Y: Tensor
    vacant_Y: Tensor


@METHODS.register("fedvls")
@dataclass(frozen=True)
class FedVLS(Method):
    """FedVLS (Guo et al. 2025): the server's model says what a client's vacant classes are.

    local loss: CE(z + log p, y) + lam mean_B KL(q_server || q) + suppression sum_c p_c log mean_B [y != c] e^(z_c)

    p is the client's share of its samples a class; q is the softmax over the classes that it lacks (vacant classes),
    of the server's logits and of its own. The server's model is in evaluation mode. With fewer than two vacant
    classes the second term is 0. A class that is every label of a batch is not suppressed there. lam = suppression = 0
    is balanced softmax, which is FedAvg on clients with equally many samples of each class.

    - ``original``, the paper's equations;
    - ``code``, its authors' code: log (p + 1e-9), so that vacant classes stay in the first term, and suppression of
      z_c - log (p_c + 1e-9) - log Y, with 1 in place of 0 where y = c. The code's teacher is in training mode; its
      FedVLS has no weight decay and starts every round with zero momentum, unlike its other methods.

    suppression is 1 in the paper and 0.005 in the code: the last term has no lower bound, as it falls with any number
    that is subtracted from all logits, which do not change the first. lam is 0.1 in the code's example, 1 by default.
    """

    equation: ClassVar[str] = (
        "local loss: CE(z + log p, y) + lam KL(softmax(z_server) || softmax(z)) over classes with n_c = 0 "
        "+ suppression sum_c p_c log mean_B [y != c] exp(z_c)"
    )
    source: ClassVar[str] = "@guo2025fedvls, Algorithm 1"
    elementwise: ClassVar[bool] = True
    shifts_logits: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0)] = 0.1
    suppression: Annotated[float, Field(ge=0)] = 0.005
    variant: Literal["original", "code"] = "original"

    def teachers(self, ctx: Context) -> dict[str, Tree]:
        return {"server": ctx.x}

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        """Add the logarithms of the shares; in ``original`` that of 0 is -infinity."""
        return z_BY + self._log_shares(_shares(z_BY, ctx))

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        """Return both terms beside the cross-entropy."""
        shares = _shares(batch.logits_BY, ctx)
        return self._distilled(batch, shares) + self._suppressed(batch, shares)

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        """Return lam / B (p - q) of vacant classes, and suppression times share times the softmax over the batch."""
        z_NYB, server_NYB = (each.logits_BY.movedim(-1, 0).mT for each in (batch, batch.teachers["server"]))
        shares, labels_N1B = _shares(batch.logits_BY, ctx), batch.labels_B.movedim(-1, 0).unsqueeze(1)
        held_NY1 = ~shares.vacant_Y.movedim(-1, 0).unsqueeze(2)
        p_NYB, q_NYB = (each.masked_fill(held_NY1, float("-inf")).softmax(1) for each in (z_NYB, server_NYB))
        distilled_NYB = p_NYB.sub_(q_NYB).masked_fill_(held_NY1, 0).mul_(1 / z_NYB.shape[2])
        if self.variant == "original":
            spread_NYB = z_NYB.scatter(1, labels_N1B, float("-inf"))
        else:
            offset_NY1 = (self._log_shares(shares) + math.log(z_NYB.shape[1])).movedim(-1, 0).unsqueeze(2)
            spread_NYB = (z_NYB - offset_NY1).scatter_(1, labels_N1B, 0.0)
        suppressed_NYB = spread_NYB.softmax(2).scatter_(1, labels_N1B, 0.0)
        distilled_BY, suppressed_BY = (each.mT.movedim(0, -1) for each in (distilled_NYB, suppressed_NYB))
        return {"logits_BY": distilled_BY.mul_(self.lam).addcmul_(self.suppression * shares.p_Y, suppressed_BY)}

    def _log_shares(self, shares: _Shares) -> Tensor:
        return (shares.p_Y if self.variant == "original" else shares.p_Y + EPS).log()

    def _spread(self, z_BY: Tensor, shares: _Shares, true_BY: Tensor) -> Tensor:
        """Return what the suppression adds up over the batch, as logarithms."""
        if self.variant == "original":
            return z_BY.masked_fill(true_BY, float("-inf"))
        return (z_BY - self._log_shares(shares) - math.log(z_BY.shape[1])).masked_fill(true_BY, 0)

    def _distilled(self, batch: Batch, shares: _Shares) -> Tensor:
        held_Y = ~shares.vacant_Y
        p_BY, q_BY = (
            z_BY.masked_fill(held_Y, float("-inf")).log_softmax(1)
            for z_BY in (batch.logits_BY, batch.teachers["server"].logits_BY)
        )
        # Filled after the product, too: held classes have infinity - infinity there, and a gradient of 0.
        terms_BY = (q_BY.exp() * (q_BY - p_BY)).masked_fill(held_Y, 0)
        return self.lam * terms_BY.sum(1).mean()

    def _suppressed(self, batch: Batch, shares: _Shares) -> Tensor:
        true_BY, size = _true(batch), math.log(len(batch.logits_BY))
        mean_Y = self._spread(batch.logits_BY, shares, true_BY).logsumexp(0) - size
        if self.variant == "original":
            mean_Y = mean_Y.masked_fill(true_BY.all(0), 0)
        return self.suppression * (shares.p_Y * mean_Y).sum()


def _shares(z_BY: Tensor, ctx: Context) -> _Shares:
    return _Shares(ctx.counts_Y.to(z_BY.dtype) / ctx.counts_Y.sum(0), ctx.counts_Y == 0)


def _true(batch: Batch) -> Tensor:
    """Return where the class is the label (B, Y)."""
    import torch

    return batch.labels_B[:, None] == torch.arange(batch.logits_BY.shape[1], device=batch.labels_B.device)
