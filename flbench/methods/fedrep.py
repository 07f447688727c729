"""FedRep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Context
from flbench.methods.fedper import FedPer
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("fedrep")
@dataclass(frozen=True)
class FedRep(FedPer):
    """FedRep (Collins et al. 2021, Algorithm 1): FedPer that trains first the head alone, then the body alone.

    Of a client's K local steps the last ``body`` K, rounded, train the body. The paper's algorithm has one such step;
    its experiments have 10 epochs for the head and 1 (or 5) for the body. As in the authors' code one optimizer trains
    both, whose momentum stands still with its part of the network; FL-bench counts in epochs, and fluke gives the
    body as many as the head. The authors' code fine-tunes the head before the last evaluation, ``finetune`` everything.
    """

    equation: ClassVar[str] = (
        "K - body K steps of the head, then body K steps of the body; the head stays on the client"
    )
    source: ClassVar[str] = "@collins2021fedrep, Algorithm 1"
    elementwise: ClassVar[bool] = True
    static: ClassVar[frozenset[str]] = frozenset({"body"})

    body: Annotated[float, Field(gt=0, lt=1)] = 0.1

    def rates(self, name: str, ctx: Context) -> float | Tensor:
        steps_of_head = (1 - self.body) * ctx.steps
        is_head = name.startswith(ctx.head.removesuffix("weight"))
        # Half a step apart, so that rounding errors of the product decide nothing.
        trains: float | Tensor = 1.0 * (ctx.step + 0.5 < steps_of_head if is_head else ctx.step + 0.5 >= steps_of_head)
        return trains
