"""Sharpness of the global model's loss landscape, over all data and on single clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from flbench.probes.base import Observation, Probe
from flbench.registry import PROBES

if TYPE_CHECKING:
    from torch import Tensor

    from flbench.engine.model_access import ModelAccess


@PROBES.register("sharpness")
@dataclass(frozen=True)
class Sharpness(Probe):
    """lambda_max of the Fisher information at the global model, over ``samples`` training samples in training mode.

    ``lambda_max``: of the Fisher information of the softmax, E[J^T (diag p - p p^T) J], which is the Gauss-Newton part
    of the cross-entropy's Hessian: gradient descent on it is stable below ``rate`` = 2 / lambda_max; ``lr``: the
    learning rate in use, for comparison; ``local``: lambda_max over the own samples of each of the first ``clients``
    clients. Normalizations use that batch.
    """

    lists: ClassVar[Mapping[str, int] | None] = {"local": 1}
    source = "@karakida2019sharpness"
    samples: Annotated[int, Field(ge=2)] = 100
    clients: Annotated[int, Field(ge=0)] = 3

    def measure(self, seen: Observation) -> dict[str, Any]:
        access = seen.access
        images = access.train_samples(self.samples)
        largest = self._largest(access, images)
        return {
            "lambda_max": _finite(largest),
            "rate": 2 / largest if largest > 0 else None,
            "lr": access.current_lr,
            "local": [
                _finite(self._largest(access, access.train_samples(self.samples, client), client))
                for client in range(min(self.clients, access.clients))
            ],
        }

    def _largest(self, access: ModelAccess, images: Tensor, client: int = 0) -> float:
        from flbench import fisher

        params, buffers = access.model(client)

        def outputs(leaves: dict[str, Tensor]) -> Tensor:
            logits_MY = access.forward(leaves, buffers, images, training=True)[1]
            # diag p - p p^T = L L^T with L = diag(sqrt p) - p sqrt(p)^T: L^T J has the softmax's Fisher as its square.
            p_MY = logits_MY.detach().softmax(1)
            return p_MY.sqrt() * (logits_MY - (p_MY * logits_MY).sum(1, keepdim=True))

        return fisher.largest_eigenvalue(fisher.Jacobian(outputs, params))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
