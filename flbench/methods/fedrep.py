"""FedRep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Context
from flbench.methods.fedper import FedPer
from flbench.models.heads.base import is_of_head
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor


@METHODS.register("fedrep")
@dataclass(frozen=True)
class FedRep(FedPer):
    """FedRep (Collins et al. 2021, Algorithm 1): FedPer that trains first the head alone, then the body alone.

    Of a client's K local steps the last ``body`` K, rounded, train the body, but at least one trains each part; a
    single step trains both. The paper's algorithm has one step of the body; its experiments have 10 epochs for the head
    and 1 (or 5) for the body. As in the authors' code one optimizer trains both, whose momentum stands still with its
    part of the network; FL-bench counts in epochs, and fluke gives the body as many as the head. The authors' code
    fine-tunes the head before the last evaluation, ``finetune`` everything.
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
        is_first, is_last = ctx.step < 1, ctx.step >= ctx.steps - 1
        # Half a step apart, so that rounding errors of the product decide nothing.
        is_early = ctx.step + 0.5 < steps_of_head
        trains: bool | Tensor = is_last | ((is_early ^ True) & (is_first ^ True))
        if is_of_head(name):
            trains = is_first | (is_early & (is_last ^ True))
        return 1.0 * trains
