"""FedGamma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.fedsam import FedSAM
from flbench.methods.scaffold import Scaffold
from flbench.registry import METHODS


@METHODS.register("fedgamma")
@dataclass(frozen=True)
class FedGamma(FedSAM, Scaffold):
    """FedGamma (Dai et al. 2023): SCAFFOLD with FedSAM's gradients; rho = 0 is SCAFFOLD, with the same variants."""

    equation: ClassVar[str] = (
        "w <- w - lr (g(w + rho g(w) / ||g(w)||) - c_k + c), c_k' = c_k - c + (x - w_k) / (K lr), "
        "x <- x + server_lr mean_k (w_k - x), c <- c + |S|/N mean_k (c_k' - c_k)"
    )
    source: ClassVar[str] = "@dai2023fedgamma"
    version: ClassVar[int] = 1

    rho: Annotated[float, Field(ge=0)] = 0.01
