"""Every client alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Method
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import nn


@METHODS.register("local-only")
@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client trains its own copy of the initial network, with the same steps, and nothing is ever sent.

    The baseline that federated training must beat. Momentum starts afresh each round as with every method, so that
    averaging is the only difference to FedAvg. The models are personal and are evaluated as such.
    """

    equation: ClassVar[str] = "w_k <- K steps of SGD on client k's data, from its own last w_k"
    source: ClassVar[str] = "baseline: no communication"
    keeps_statistics: ClassVar[bool] = True

    #: There is no server step to scale.
    server_lr: Annotated[float, Field(ge=1, le=1)] = 1.0

    def local_names(self, model: nn.Module) -> frozenset[str]:
        return frozenset([*dict(model.named_parameters()), *dict(model.named_buffers())])
