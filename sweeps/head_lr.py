"""FedAvg with a learning rate of its own for the head: the plug-in of ``sweeps/head_scale.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from flbench.methods.base import Context, Method
from flbench.registry import METHODS


@METHODS.register("head-lr")
@dataclass(frozen=True)
class HeadLr(Method):
    """FedAvg whose head's weight has ``factor`` times the learning rate; 0 keeps its initial value.

    A constant c behind the features, without a bias, is a head whose initial weight is c times and whose learning rate
    c^2 times as large. With ``norm: {name: scale, factor: c}`` and a factor of 1 / c^2 the initial weight alone is
    larger, with ``norm: none`` and a factor of c^2 the rate alone.
    """

    equation: ClassVar[str] = "w_head <- w_head - factor lr g"
    elementwise: ClassVar[bool] = False
    factor: Annotated[float, Field(ge=0)] = 1.0

    def direction(self, w: Mapping[str, Tensor], g: Mapping[str, Tensor], ctx: Context) -> dict[str, Tensor]:
        """Return the gradient, that of the head's weight multiplied by ``factor``."""
        return {**g, ctx.head: self.factor * g[ctx.head]}
