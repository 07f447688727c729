"""Multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.models.base import Model
from flbench.models.stages import Dense
from flbench.registry import MODELS


@MODELS.register("mlp")
@dataclass(frozen=True)
class Mlp(Model):
    """Fully connected ReLU layers of the given widths and a linear head; without widths a linear classifier."""

    source: ClassVar[str] = ""

    widths: tuple[Annotated[int, Field(ge=1)], ...] = (128, 128)

    def stages(self) -> tuple[Dense, ...]:
        return tuple(Dense(width) for width in self.widths)
