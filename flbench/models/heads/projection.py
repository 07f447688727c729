"""The projection of MOON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.models.heads.base import Head
from flbench.registry import HEADS

if TYPE_CHECKING:
    from torch import nn


@HEADS.register("projection")
@dataclass(frozen=True)
class Projection(Head):
    """A linear layer on a projection of the features by two layers.

    The output of the projection is what methods and probes see as the features, so the projection belongs to the body:
    FedPer shares it, and ``train: head`` leaves it constant (``train: head+projection.*`` trains it). A normalization
    of the features stands in front of the projection. MOON's code gives all three layers a bias; here the two of the
    projection have one if the experiment's ``bias`` is set.

    Attributes:
        hidden: width of the first layer; null: as many as the features, as in MOON's code.
        out: width of the second layer.
    """

    equation: ClassVar[str] = "z = W g + b, g = P2 relu(P1 f)"
    source: ClassVar[str] = "@li2021moon, and its code (ModelFedCon)"

    hidden: Annotated[int, Field(ge=1)] | None = None
    out: Annotated[int, Field(ge=1)] = 256

    def width(self, features: int) -> int:
        return self.out

    def projection(self, features: int, bias: bool) -> nn.Module:
        from torch import nn

        from flbench.models.layers import Dense, Relu

        hidden = self.hidden or features
        return nn.Sequential(Dense(features, hidden, bias=bias), Relu(), Dense(hidden, self.out, bias=bias))
