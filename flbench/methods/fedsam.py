"""FedSAM and MoFedSAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Context, Method, Tree, tmap
from flbench.methods.fedcm import FedCM
from flbench.registry import METHODS

_SOURCE = "@qu2022fedsam"

#: Least norm of a gradient: a gradient of 0 does not perturb, and every longer one moves by rho exactly.
TINY = 1e-12


@METHODS.register("fedsam")
@dataclass(frozen=True)
class FedSAM(Method):
    """FedSAM (Qu et al. 2022): local steps of sharpness-aware minimization; rho = 0 is FedAvg.

    w <- w - lr g(w + rho g(w) / ||g(w)||), both gradients on the same batch

    The norm is one per client, over all parameters. Weight decay is not part of the perturbation. Batch statistics move
    in the first pass only, as in Foret et al. (2021), whose rho is the default; in most federated codes both passes
    move them, and rho is 0.02 to 0.1. Caldarola et al. (2022) propose the same method under this name.
    """

    equation: ClassVar[str] = "w <- w - lr g(w + rho g(w) / ||g(w)||)"
    source: ClassVar[str] = _SOURCE
    elementwise: ClassVar[bool] = True

    rho: Annotated[float, Field(ge=0)] = 0.05

    def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Return the weights at distance rho in the direction of the gradient."""
        scale = self.rho * (1 / ctx.norm(g).clamp_min(TINY))
        return tmap(lambda w, g: w + scale * g, w, g)


@METHODS.register("mofedsam")
@dataclass(frozen=True)
class MoFedSAM(FedSAM, FedCM):
    """MoFedSAM (Qu et al. 2022): FedCM with FedSAM's gradients; alpha is the paper's beta.

    rho = 0 is FedCM, alpha = 1 is FedSAM, both are FedAvg.
    """

    equation: ClassVar[str] = (
        "w <- w - lr (alpha g(w + rho g(w) / ||g(w)||) + (1 - alpha) D), D <- sum_k m_k/m (x - w_k) / (K lr)"
    )
    source: ClassVar[str] = _SOURCE
