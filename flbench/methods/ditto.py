"""Ditto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Context, Method, Tree, tmap
from flbench.registry import METHODS


@dataclass(frozen=True)
class Pulled(Method):
    """How a client trains its own model: FedProx's gradient, without autograd, which takes longer on small networks."""

    elementwise: ClassVar[bool] = True

    lam: float = 1.0

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda leaf, gradient, x: gradient + self.lam * (leaf - x), w, g, ctx.x)


@METHODS.register("ditto")
@dataclass(frozen=True)
class Ditto(Method):
    """Ditto (Li et al. 2021, Algorithm 1): FedAvg, and on each client a model of its own, pulled to the server's.

    v_k <- v_k - lr (grad L_k(v_k) + lam (v_k - x)),   x: as broadcast, on the same batches as w_k

    As in the authors' code v_k starts as the initial weights and takes one step for each step of w_k; others train it
    before or after w_k, for epochs of its own. Their optimizer of v_k is plain SGD; here it is the run's, and clipping
    does not count the pull. Batch statistics of v_k are its own. lam = 0 is training alone, beside FedAvg.
    """

    equation: ClassVar[str] = "FedAvg, and v_k <- v_k - lr (grad L_k(v_k) + lam (v_k - x)) on the client"
    source: ClassVar[str] = "@li2021ditto, Algorithm 1"
    keeps_statistics: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0)] = 1.0

    def twin(self) -> Method:
        return Pulled(lam=self.lam)
