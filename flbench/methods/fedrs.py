"""FedRS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from flbench.methods.base import Context, Method
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

    from flbench.config import Federated

#: Below this chance that any client of an iid partition lacks a class, all clients hold every class.
LACKING = 1e-3


@METHODS.register("fedrs")
@dataclass(frozen=True)
class FedRS(Method):
    """FedRS (Li & Zhan 2021): a restricted softmax, logits of classes that the client does not hold times alpha.

    alpha = 1 is FedAvg. The label-skew paper's text sets 0.5; the default of its published code, 1, switches the method
    off, and as published its class cannot be built (a misspelled name).
    """

    equation: ClassVar[str] = "local loss: CE(a_c z_c, y), a_c = 1 where n_c > 0, else alpha"
    source: ClassVar[str] = "@li2021fedrs, Section 4"
    elementwise: ClassVar[bool] = True

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5

    def same_as(self, experiment: Federated) -> Method:
        """Return FedAvg where every client holds every class, and for alpha = 1.

        An iid partition is random: it counts where the chance that any client lacks a class is below ``LACKING``.
        """
        return Method(self.server_lr) if self.alpha == 1 or _holds_every_class(experiment) else self

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        held_Y = (ctx.counts_Y > 0).to(z_BY.dtype)
        return z_BY * (held_Y + self.alpha * (1 - held_Y))


def _holds_every_class(experiment: Federated) -> bool:
    """Bound the chance by a sum over clients and classes of equal size, each drawn with replacement."""
    dataset: Any = experiment.dataset
    if experiment.partition.name != "iid" or dataset.counts is None or dataset.classes is None:
        return False
    dealt = dataset.counts[0] * (1 - experiment.server_fraction)
    samples = dealt * (1 - experiment.val_fraction) // experiment.clients
    lacking = experiment.clients * dataset.classes * (1 - 1 / dataset.classes) ** samples
    return bool(lacking < LACKING)
