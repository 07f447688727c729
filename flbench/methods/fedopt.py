"""Server optimizers: the mean change delta of a round is the server's pseudo-gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import Field, model_validator

from flbench.methods.base import Method, ServerContext, Tree, tmap
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

_ADAPTIVE = "@reddi2021fedopt, Algorithm 2"


@METHODS.register("fedavgm")
@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvgM (Hsu et al. 2019): v <- beta v + delta,   x <- x + server_lr v; beta = 0 is FedAvg."""

    equation: ClassVar[str] = "v <- beta v + delta, x <- x + server_lr v"
    source: ClassVar[str] = "@hsu2019fedavgm, Section 4.3"

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def init_server(self, x: Tree) -> Tree:
        return tmap(lambda a: 0 * a, x)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        v = tmap(lambda v, d: self.beta * v + d, state, delta)
        return tmap(lambda a, v: a + self.server_lr * v, x, v), v


@dataclass(frozen=True)
class Adaptive(Method):
    """What the adaptive optimizers of Reddi et al. (2021, Algorithm 2) share; there is no bias correction.

    m <- beta1 m + (1 - beta1) delta,   v <- second_moment(v, delta^2),   x <- x + server_lr m / (sqrt(v) + tau)

    m starts at 0 and v at ``v0``, by default tau^2, the least that Algorithm 2 allows. The defaults are those of the
    label-skew paper for FedYogi.
    """

    server_lr: Annotated[float, Field(gt=0)] = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    tau: Annotated[float, Field(gt=0)] = 1e-3
    v0: Annotated[float, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        """Write tau^2 where no v0 is given."""
        if self.v0 is None:
            object.__setattr__(self, "v0", self.tau * self.tau)

    @model_validator(mode="after")
    def _check_v0(self) -> Self:
        if cast(float, self.v0) < self.tau**2 and not self._starts_at_tau_squared():
            raise ValueError(f"v0 must be at least tau^2 = {self.tau**2:g}, its default, got {self.v0:g}")
        return self

    def settings(self) -> dict[str, Any]:
        """Return the settings without v0 where it is tau^2, its default."""
        settings = super().settings()
        return {k: v for k, v in settings.items() if k != "v0" or not self._starts_at_tau_squared()}

    def identity(self) -> dict[str, Any]:
        """Return the identity; with another tau it contains that v0 follows tau, as v0 was once 1e-6 for every tau."""
        follows = "tau" in self.settings() and self._starts_at_tau_squared()
        return super().identity() | ({"v0": "tau^2"} if follows else {})

    def _starts_at_tau_squared(self) -> bool:
        return math.isclose(cast(float, self.v0), self.tau**2)

    def init_server(self, x: Tree) -> Tree:
        """Return the moments, one leaf a parameter each: ``m/<name>`` and ``v/<name>``."""
        return {f"m/{name}": 0 * a for name, a in x.items()} | {f"v/{name}": 0 * a + self.v0 for name, a in x.items()}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        m = {name: self.beta1 * state[f"m/{name}"] + (1 - self.beta1) * d for name, d in delta.items()}
        v = {name: self.second_moment(state[f"v/{name}"], d * d) for name, d in delta.items()}
        x = tmap(lambda a, m, v: a + self.server_lr * m / (v.sqrt() + self.tau), x, m, v)
        return x, {f"m/{name}": a for name, a in m.items()} | {f"v/{name}": a for name, a in v.items()}

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the next v of one parameter, from delta^2."""
        raise NotImplementedError(f"{type(self).__name__} must define its second moment")


@METHODS.register("fedadagrad")
@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAdagrad (Reddi et al. 2021, Algorithm 2): v <- v + delta^2, without momentum (beta1 = 0)."""

    equation: ClassVar[str] = "v <- v + delta^2, x <- x + server_lr m / (sqrt(v) + tau)"
    source: ClassVar[str] = _ADAPTIVE

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v + squared


@METHODS.register("fedadam")
@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAdam (Reddi et al. 2021, Algorithm 2): v <- beta2 v + (1 - beta2) delta^2, no bias correction."""

    equation: ClassVar[str] = "v <- beta2 v + (1 - beta2) delta^2, x <- x + server_lr m / (sqrt(v) + tau)"
    source: ClassVar[str] = _ADAPTIVE

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared


@METHODS.register("fedyogi")
@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedYogi (Reddi et al. 2021, Algorithm 2): v <- v - (1 - beta2) delta^2 sign(v - delta^2), no bias correction.

    Paper, label-skew text and label-skew code agree. The code saves m, v and x in no checkpoint: its resumed runs start
    again from random weights.
    """

    equation: ClassVar[str] = "v <- v - (1 - beta2) delta^2 sign(v - delta^2), x <- x + server_lr m / (sqrt(v) + tau)"
    source: ClassVar[str] = _ADAPTIVE

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Move v towards delta^2 by a fraction of delta^2, not of the distance."""
        return v - (1 - self.beta2) * squared * (v - squared).sign()
