"""FedBN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from flbench.methods.base import Method
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import nn

    from flbench.config import Federated


@METHODS.register("fedbn")
@dataclass(frozen=True)
class FedBN(Method):
    """FedBN (Li et al. 2021, Algorithm 1): FedAvg whose batch-normalization layers never leave the client.

    Affine parameters and running statistics alike stay, and are found by the layer's type, never by a parameter's name.
    Without batch normalization in the model it is FedAvg.

    In the label-skew paper's code all clients of the CNN share one batch normalization, that of a discarded template,
    always in training mode: its FedBN and its FedAvg + BN are one computation, which sees the labels' skew through the
    statistics of the test batch. Its rows for them are evidence about neither method.
    """

    equation: ClassVar[str] = "x <- x + server_lr sum_k m_k/m (w_k - x) for all but batch-normalization layers"
    source: ClassVar[str] = "@li2021fedbn, Algorithm 1"
    keeps_statistics: ClassVar[bool] = True

    def same_as(self, experiment: Federated) -> Method:
        """Return FedAvg where the network has no batch normalization."""
        dataset, model, norm = (cast(Any, one) for one in (experiment.dataset, experiment.model, experiment.norm))
        has_batch_norm = norm.has_batch_norm or model.has_batch_norm(dataset.image, dataset.classes or 2)
        return self if has_batch_norm else Method(self.server_lr)

    def local_names(self, model: nn.Module) -> frozenset[str]:
        from flbench.models.norm_layers import is_batch_norm

        return frozenset(
            f"{path}.{name}"
            for path, module in model.named_modules()
            if is_batch_norm(module)
            for name in [*dict(module.named_parameters()), *dict(module.named_buffers())]
        )
