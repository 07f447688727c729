"""CCVR: the head is calibrated on features drawn from each class's Gaussian."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Method
from flbench.registry import METHODS


@METHODS.register("ccvr")
@dataclass(frozen=True)
class CCVR(Method):
    """CCVR (Luo et al. 2021, Algorithm 1) of the last round's x, whose statistics this round's participants send.

    The head takes full-batch steps on features from N(mu_c, Sigma_c); FL-bench's on batches, with biased covariances.
    """

    equation: ClassVar[str] = "evaluated: the head refitted on features drawn from N(mu_c, Sigma_c) of every class"
    source: ClassVar[str] = "Luo et al. 2021, Algorithm 1"
    trains_head: ClassVar[bool] = True
    statistics: ClassVar[Literal["covariance"]] = "covariance"
    statistics_of: ClassVar[Literal["received"]] = "received"

    samples: Annotated[int, Field(ge=1)] = 200
    steps: Annotated[int, Field(ge=0)] = 50
    rate: Annotated[float, Field(gt=0)] = 0.1

    def init_server(self, x):
        rows = 0 * x["head.weight"]
        return {**x, "/n": rows[:, 0], "/sum": rows, "/squares": rows[:, :, None] * rows[:, None]}

    def finish(self, w, ctx):
        n, mean = ctx.counts_Y.to(ctx.means_YD.dtype)[:, None, None], ctx.means_YD[:, None]
        squares = (n - 1).clamp(min=0) * ctx.covariances_YDD + n * mean.mT @ mean
        return ctx.client, {"/n": n[:, 0, 0], "/sum": (n * mean)[:, 0], "/squares": squares}

    def message_weights(self, cohort):
        return [1.0] * len(cohort.share)

    def server_step(self, x, delta, message, state, ctx):
        return super().server_step(x, delta, message, state, ctx)[0], {**x, **message}

    def evaluated(self, x, state):
        import torch

        labels, draws = (state["/n"] > 1).nonzero()[:, 0], torch.Generator().manual_seed(0)
        n, mean = state["/n"][labels, None, None], state["/sum"][labels, None] / state["/n"][labels, None, None]
        values, vectors = torch.linalg.eigh((state["/squares"][labels] - n * mean.mT @ mean) / (n - 1))
        drawn = torch.randn(len(labels), self.samples, mean.shape[-1], generator=draws, dtype=torch.float64).to(mean)
        features = (mean + drawn @ (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT).flatten(0, 1)
        head = {name: state[name] for name in x if name.startswith("head.")}
        for _ in range(self.steps if len(labels) else 0):
            head = {name: leaf.detach().requires_grad_() for name, leaf in head.items()}
            logits = features @ head["head.weight"].mT + head.get("head.bias", 0)
            loss = torch.nn.functional.cross_entropy(logits, labels.repeat_interleave(self.samples))
            grads = torch.autograd.grad(loss, list(head.values()))
            head = {name: leaf.detach() - self.rate * g for (name, leaf), g in zip(head.items(), grads, strict=True)}
        return {name: head.get(name, state[name]) for name in x}
