"""FedALA, adaptive local aggregation (Zhang et al., AAAI 2023, Algorithm 1), by a training of its own."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Method, tmap
from flbench.registry import METHODS


def descent(forward, w, images, labels):
    """Return the cross-entropy and its gradient at ``w``."""
    import torch

    leaves = tmap(lambda leaf: leaf.detach().requires_grad_(), w)
    loss = torch.nn.functional.cross_entropy(forward(leaves, images).logits_BY, labels)
    return loss.detach(), dict(zip(w, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@METHODS.register("fedala")
@dataclass(frozen=True)
class FedALA(Method):
    """Clients start from a mix of the server's weights and their own last ones, whose shares they learn.

    W <- clip(W - eta g (x - w_k), 0, 1) at w_k + (x - w_k) W, for the last ``layers`` parameters; all others start from
    x. Here the shares are learned on the batches of the round, once in every round.
    """

    equation: ClassVar[str] = "w = w_k + (x - w_k) W, W <- clip(W - eta g (x - w_k), 0, 1); then SGD"
    static: ClassVar[frozenset[str]] = frozenset({"layers"})

    eta: Annotated[float, Field(ge=0)] = 1.0
    layers: Annotated[int, Field(ge=1)] = 1

    def init_client(self, x, buffers):
        mixed = list(x)[-self.layers :]
        return {f"w/{name}": x[name] for name in mixed} | {f"W/{name}": 0 * x[name] + 1 for name in mixed}

    def train(self, w, batches, ctx, forward):
        mixed = list(ctx.x)[-self.layers :]
        own = {name: ctx.client[f"w/{name}"] for name in mixed}
        shares = {name: ctx.client[f"W/{name}"] for name in mixed}
        gap = {name: ctx.x[name] - own[name] for name in mixed}
        start = tmap(lambda a, d, share: a + d * share, own, gap, shares)
        for images, labels in batches:
            _, g = descent(forward, {**w, **start}, images, labels)
            shares = {name: (shares[name] - self.eta * g[name] * gap[name]).clamp(0, 1) for name in mixed}
            start = tmap(lambda a, d, share: a + d * share, own, gap, shares)
        w, losses = {**w, **start}, []
        for images, labels in batches:
            loss, g = descent(forward, w, images, labels)
            w = tmap(lambda a, d: a - ctx.lr * d, w, g)
            losses.append(loss)
        state = {f"w/{name}": w[name] for name in mixed} | {f"W/{name}": shares[name] for name in mixed}
        return w, state, sum(losses) / len(losses)
