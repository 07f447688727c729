"""Ditto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Method
from flbench.methods.fedprox import FedProx
from flbench.registry import METHODS


@METHODS.register("ditto")
@dataclass(frozen=True)
class Ditto(Method):
    """Ditto (Li et al. 2021, Algorithm 1): FedAvg, and on each client a model of its own, pulled to the server's.

    v_k <- v_k - lr (grad L_k(v_k) + lam (v_k - x)),   x: as broadcast, on the same batches as w_k

    As in the authors' code v_k starts as the initial weights and takes one step for each step of w_k; others train it
    before or after w_k, for epochs of its own. Their optimizer of v_k is plain SGD; here it is the run's.
    Batch statistics of v_k are its own. lam = 0 is training alone, beside FedAvg.
    """

    equation: ClassVar[str] = "FedAvg, and v_k <- v_k - lr (grad L_k(v_k) + lam (v_k - x)) on the client"
    source: ClassVar[str] = "@li2021ditto, Algorithm 1"
    keeps_statistics: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0)] = 1.0

    def twin(self) -> Method:
        return FedProx(mu=self.lam)
