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
    x. Here the shares are learned on the batches of the round, once in every round. Evaluated is where a client would
    start, as in the authors' code, with the shares that it has: the code learns them once more before.
    """

    equation: ClassVar[str] = "w = w_k + (x - w_k) W, W <- clip(W - eta g (x - w_k), 0, 1); then SGD"
    static: ClassVar[frozenset[str]] = frozenset({"layers"})

    eta: Annotated[float, Field(ge=0)] = 1.0
    layers: Annotated[int, Field(ge=1)] = 1

    def init_client(self, x, buffers):
        mixed = list(x)[-self.layers :]
        return {f"w/{name}": x[name] for name in mixed} | {f"W/{name}": 0 * x[name] + 1 for name in mixed}

    def personal(self, x, client):
        own, shares = ({n: client[f"{tree}/{n}"] for n in list(x)[-self.layers :]} for tree in "wW")
        return {**x, **tmap(lambda a, received, share: a + (received - a) * share, own, x, shares)}

    def train(self, w, batches, ctx, forward):
        state, mixed, losses = dict(ctx.client), list(ctx.x)[-self.layers :], []
        for images, labels in batches:
            _, g = descent(forward, {**w, **self.personal(ctx.x, state)}, images, labels)
            for n in mixed:
                step = self.eta * g[n] * (ctx.x[n] - state[f"w/{n}"])
                state[f"W/{n}"] = (state[f"W/{n}"] - step).clamp(0, 1)
        w = {**w, **self.personal(ctx.x, state)}
        for images, labels in batches:
            loss, g = descent(forward, w, images, labels)
            w = tmap(lambda a, d: a - ctx.lr * d, w, g)
            losses.append(loss)
        return w, {**state, **{f"w/{n}": w[n] for n in mixed}}, sum(losses) / len(losses)
