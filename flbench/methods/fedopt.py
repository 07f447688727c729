"""Adaptive server optimizers (Reddi et al. 2020, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flbench.methods.base import Method, Tree, tmap
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("fedyogi")
@dataclass(frozen=True)
class FedYogi(Method):
    """FedYogi (Reddi et al. 2020, Algorithm 2), with delta as pseudo-gradient and no bias correction.

    m <- beta1 m + (1 - beta1) delta,   v <- v - (1 - beta2) delta^2 sign(v - delta^2),
    x <- x + server_lr m / (sqrt(v) + tau)

    m starts at 0 and v at ``v0``; the defaults are the label-skew paper's.
    """

    server_lr: Annotated[float, Field(gt=0)] = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Field(gt=0)] = 1e-3
    v0: Annotated[float, Field(ge=0)] = 1e-6

    def init_server(self, x: Tree) -> Tree:
        """The moments, one leaf a parameter each: ``m/<name>`` and ``v/<name>``."""
        return {f"m/{name}": 0 * a for name, a in x.items()} | {f"v/{name}": 0 * a + self.v0 for name, a in x.items()}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, participation: float) -> tuple[Tree, Tree]:
        """One Yogi step."""
        m = {name: self.beta1 * state[f"m/{name}"] + (1 - self.beta1) * d for name, d in delta.items()}
        v = {name: self._second_moment(state[f"v/{name}"], d * d) for name, d in delta.items()}
        x = tmap(lambda a, m, v: a + self.server_lr * m / (v.sqrt() + self.tau), x, m, v)
        return x, {f"m/{name}": a for name, a in m.items()} | {f"v/{name}": a for name, a in v.items()}

    def _second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * (v - squared).sign()
