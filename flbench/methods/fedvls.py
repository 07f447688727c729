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
        z_BY, server_BY = batch.logits_BY, batch.teachers["server"].logits_BY
        shares, true_BY = _shares(z_BY, ctx), _true(batch)
        held_Y = ~shares.vacant_Y
        p_BY, q_BY = (_softmax(_with(float("-inf"), held_Y, each_BY), 1) for each_BY in (z_BY, server_BY))
        distilled_BY = (p_BY - q_BY).masked_fill_(held_Y, 0).mul_(1 / len(z_BY)).mul_(self.lam)
        suppressed_BY = _softmax(self._spread(z_BY, shares, true_BY), 0).masked_fill_(true_BY, 0)
        return {"logits_BY": distilled_BY.addcmul_(self.suppression * shares.p_Y, suppressed_BY)}

    def _log_shares(self, shares: _Shares) -> Tensor:
        return (shares.p_Y if self.variant == "original" else shares.p_Y + EPS).log()

    def _spread(self, z_BY: Tensor, shares: _Shares, true_BY: Tensor) -> Tensor:
        """Return what the suppression adds up over the batch, as logarithms."""
        if self.variant == "original":
            return _with(float("-inf"), true_BY, z_BY)
        return _with(0.0, true_BY, z_BY - self._log_shares(shares) - math.log(z_BY.shape[1]))

    def _distilled(self, batch: Batch, shares: _Shares) -> Tensor:
        held_Y = ~shares.vacant_Y
        p_BY, q_BY = (
            _with(float("-inf"), held_Y, z_BY).log_softmax(1)
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
    """Return where the class is the label (B, Y); for a stack its clients are the last axis."""
    import torch

    labels_B = batch.labels_B
    classes_Y = torch.arange(batch.logits_BY.shape[1], device=labels_B.device)
    return labels_B.unsqueeze(1) == classes_Y.view(-1, *[1] * (labels_B.dim() - 1))


def _with(value: float, places: Tensor, z_BY: Tensor) -> Tensor:
    """Return the logits with a value in these places, in the memory layout of the logits.

    A stack's clients are the last axis, but the first in memory. ``masked_fill`` would make them the last there, too,
    and torch would round a client's sums by its place.
    """
    import torch

    return torch.where(places, torch.scalar_tensor(value, dtype=z_BY.dtype, device=z_BY.device), z_BY)


def _softmax(z_BY: Tensor, dim: int) -> Tensor:
    """Return the softmax by elementwise operations and one sum, which keep the memory layout; its own makes a copy."""
    return (z_BY - z_BY.logsumexp(dim, keepdim=True)).exp()
