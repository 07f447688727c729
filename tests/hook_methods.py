"""Small methods, one or two for each hook that no method of flbench's first papers needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.methods.base import Batch, Cohort, Context, Method, ServerContext, Tree, tmap


@dataclass(frozen=True)
class Taught(Method):
    """Three teachers: the server's weights, the client's last ones with their statistics, and a scaled head."""

    mu: float = 0.3

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return {**x, **buffers}

    def teachers(self, ctx: Context) -> dict[str, Tree]:
        return {"server": ctx.x, "last": ctx.client, "scaled": {ctx.head: 2 * ctx.x[ctx.head]}}

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
        server, last, scaled = (batch.teachers[name] for name in ("server", "last", "scaled"))
        near = (batch.features_BD - server.features_BD).square().mean()
        far = (batch.features_BD * last.features_BD).mean()
        return self.mu * (near - 0.1 * far + (batch.logits_BY - scaled.logits_BY).square().mean())

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return {**w, **ctx.buffers}, {}


@dataclass(frozen=True)
class Sharp(Method):
    """The gradient at distance ``rho`` along the gradient."""

    elementwise: ClassVar[bool] = True

    rho: float = 0.1

    def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        length = ctx.norm(g).clamp_min(1e-12)
        return tmap(lambda w, g: w + self.rho * g / length, w, g)


@dataclass(frozen=True)
class Median(Method):
    """The coordinates' median of the clients' changes."""

    def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
        return tmap(lambda leaf: leaf.median(0).values, changes_n)


@dataclass(frozen=True)
class Ahead(Method):
    """Clients start ahead of the server's parameters, along its momentum, and stay near it."""

    beta: float = 0.5

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda leaf: 0.01 * leaf, x)

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return tmap(lambda leaf, v: leaf + self.beta * v, x, state), state

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda w, g, x, v: g + 0.1 * (w - x) + 0.05 * v, w, g, ctx.x, ctx.server)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        v = tmap(lambda v, d: self.beta * v + d, state, delta)
        return tmap(lambda leaf, v: leaf + v, x, v), v


@dataclass(frozen=True)
class Averaged(Method):
    """Evaluates the mean of the last two parameters."""

    def init_server(self, x: Tree) -> Tree:
        return x

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return super().server_step(x, delta, message, state, ctx)[0], x

    def evaluated(self, x: Tree, state: Tree) -> Tree:
        return tmap(lambda now, before: (now + before) / 2, x, state)


@dataclass(frozen=True)
class Decaying(Method):
    """Clients' and server's steps shrink with the round, and clients' with their size."""

    decay: float = 0.5

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda leaf: (leaf + self.decay * leaf) / (1 + ctx.round) / ctx.relative_size, g)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return tmap(lambda leaf, d: leaf + d / (1 + 0.1 * ctx.round), x, delta), state


@dataclass(frozen=True)
class DecayingElementwise(Decaying):
    """The same without the size, as it is for a stack."""

    elementwise: ClassVar[bool] = True

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda w, leaf: (leaf + self.decay * w) / (1 + ctx.round), w, g)


@dataclass(frozen=True)
class Smoothed(Method):
    """A cross-entropy with smooth labels, and a term on the head's weight."""

    smoothing: float = 0.2

    def loss(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
        smooth = -F.log_softmax(batch.logits_BY, 1).mean()
        own = super().loss(w, batch, ctx)
        return own + self.smoothing * (smooth - own) + 0.01 * w[ctx.head].square().sum()


@dataclass(frozen=True)
class Stepping(Method):
    """A change of the step after momentum, by the weights and each client's state and size."""

    mu: float = 0.1

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return x

    def step(self, w: Tree, moved: Tree, ctx: Context) -> Tree:
        return tmap(lambda m, w, own: m / ctx.relative_size + self.mu * (w - own), moved, w, ctx.client)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return w, {}


@dataclass(frozen=True)
class SteppingElementwise(Stepping):
    """The same for all clients of a stack."""

    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Noisy(Method):
    """Random numbers in hooks of the client, within steps and after them, and of the server."""

    noise: float = 0.01

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return x

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
        return (self.noise * ctx.random.uniform("logits", batch.logits_BY) * batch.logits_BY).mean()

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        drawn = {name: (1 + ctx.step) * ctx.random.normal(name, leaf) for name, leaf in g.items()}
        return tmap(lambda leaf, noise: leaf + self.noise * noise, g, drawn)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        assert ctx.step == -1
        return {name: leaf + ctx.random.uniform(name, ctx.x[name]) for name, leaf in w.items()}, {}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        noise = {name: self.noise * ctx.random.normal(name, leaf) for name, leaf in x.items()}
        return tmap(lambda leaf, d, n: leaf + d + n, x, delta, noise), state


@dataclass(frozen=True)
class NoisyElementwise(Noisy):
    """The same for all clients of a stack."""

    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Phased(Method):
    """The head alone moves in the first half of the steps, then the body, at rates of their own."""

    share: float = 0.5

    def rates(self, name: str, ctx: Context) -> float | Tensor:
        if name.startswith("trunk.dense2"):
            return 0.5 if ctx.step else 0
        body = ctx.step >= self.share * ctx.steps  # a tensor where steps or shares differ between clients
        return body == name.startswith("trunk")


@dataclass(frozen=True)
class PhasedElementwise(Phased):
    """The same for all clients of a stack."""

    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Uploading(Method):
    """Half of what is to be sent, clipped and noisy; the rest is sent with the next change."""

    limit: float = 0.1

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return tmap(lambda leaf: 0 * leaf, x)

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return tmap(lambda rest: 0.9 * rest, ctx.client), {}

    def upload(self, change: Tree, ctx: Context) -> tuple[Tree, Tree]:
        whole = tmap(lambda d, rest: d + rest, change, ctx.client)
        factor = 0.5 * (self.limit * (1 / ctx.norm(whole))).clamp(max=1)
        sent = {name: factor * leaf + 0.01 * ctx.random.normal(name, leaf) for name, leaf in reversed(whole.items())}
        return sent, tmap(lambda d, s: d - s, whole, sent)

    def upload_bytes(self, x: Tree) -> int:
        return 7


@dataclass(frozen=True)
class UploadingElementwise(Uploading):
    """The same for all clients of a stack."""

    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Everything(Taught, Sharp, Median, Ahead, Smoothed):
    """All hooks at once."""

    elementwise: ClassVar[bool] = False

    def evaluated(self, x: Tree, state: Tree) -> Tree:
        return tmap(lambda leaf, v: leaf - 0.5 * v, x, state)

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        pulled = super().direction(w, g, ctx)
        return tmap(lambda leaf: leaf / (1 + ctx.round), pulled)


@dataclass(frozen=True)
class Statistical(Method):
    """The head moves with the classes' mean features; changes are weighed by classes, losses and messages."""

    statistics: ClassVar[Literal["", "mean", "covariance"]] = "covariance"

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return {}, {"mean": ctx.means_YD, "spread": ctx.covariances_YDD.square().sum((1, 2))}

    def delta_weights(self, cohort: Cohort) -> list[float]:
        held = (cohort.counts > 0).sum(1)
        return list(held / held.sum())

    def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
        spread_n = (ctx.messages_n["spread"] * ctx.counts_nY).sum(1)
        return super().aggregate(changes_n, weights_n / (1 + ctx.losses_n + spread_n), ctx)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        x, _ = super().server_step(x, delta, message, state, ctx)
        return {**x, ctx.head: x[ctx.head] + 0.1 * message["mean"]}, state


@dataclass(frozen=True)
class Learned(Method):
    """The server scales weights and takes a step of its own, by gradients on its data."""

    needs_server_data: ClassVar[bool] = True
    rate: float = 0.5

    def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
        scale_n = torch.ones_like(weights_n).requires_grad_()
        delta = super().aggregate(changes_n, scale_n * weights_n, ctx)
        (g_n,) = self._gradient(tmap(lambda leaf, d: leaf + d, ctx.x, delta), [scale_n], ctx, slice(0, 5))
        return super().aggregate(changes_n, (1 - self.rate * g_n) * weights_n, ctx)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        x, _ = super().server_step(x, delta, message, state, ctx)
        x = {name: leaf.detach().requires_grad_() for name, leaf in x.items()}
        grads = self._gradient(x, list(x.values()), ctx, slice(None))
        return {name: leaf.detach() - 0.1 * g for (name, leaf), g in zip(x.items(), grads, strict=True)}, state

    def _gradient(self, w: Tree, of: list[Tensor], ctx: ServerContext, samples: slice) -> tuple[Tensor, ...]:
        assert ctx.data is not None
        loss = F.cross_entropy(ctx.data.outputs(w, samples=samples).logits_BY, ctx.data.labels_M[samples])
        return torch.autograd.grad(loss, of, torch.ones_like(loss))


METHODS: list[Method] = [
    Taught(), Sharp(), Median(), Ahead(), Averaged(), Decaying(), DecayingElementwise(), Smoothed(),
    Stepping(), SteppingElementwise(), Noisy(), NoisyElementwise(),
    Phased(), PhasedElementwise(), Uploading(), UploadingElementwise(), Everything(), Statistical(), Learned(),
]  # fmt: skip

#: For each method a field of which runs trained together have different values.
FIELDS = {
    Taught: "mu",
    Sharp: "rho",
    Ahead: "beta",
    Decaying: "decay",
    DecayingElementwise: "decay",
    Stepping: "mu",
    SteppingElementwise: "mu",
    Noisy: "noise",
    NoisyElementwise: "noise",
    Phased: "share",
    PhasedElementwise: "share",
    Uploading: "limit",
    UploadingElementwise: "limit",
    Learned: "rate",
}


def label(method: Method) -> str:
    return type(method).__name__


def varied(method: Method, factor: float) -> Method:
    """The same with another value of its field, if it has one."""
    field = FIELDS.get(type(method))
    if field is None:
        return method
    changed: Method = type(method)(**{field: factor * getattr(method, field)})
    return changed
