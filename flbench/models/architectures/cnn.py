"""The label-skew paper's convolutional network (Zhang et al. 2024, arXiv 2308.09565), in both published forms."""

from __future__ import annotations

from dataclasses import dataclass

from flbench.models.base import Model
from flbench.models.stages import Conv, Dense, Stage
from flbench.registry import MODELS

_TRUNK: tuple[Stage, ...] = (Conv(64, kernel=5, pool=2), Conv(64, kernel=5, pool=2), Dense(384))


@MODELS.register("cnn")
@dataclass(frozen=True)
class Cnn(Model):
    """The paper's published code: conv 5x5 64, pool, conv 5x5 64, pool, 1600-384-192-classes (sizes for 32x32 images).

    797,248 weights for CIFAR-10 without biases; the feature has 192 elements.
    """

    source = "@zhang2024labelskew, published code"

    def stages(self) -> tuple[Stage, ...]:
        return (*_TRUNK, Dense(192))


@MODELS.register("cnn-table7")
@dataclass(frozen=True)
class CnnTable7(Model):
    """The paper's text (Table 7): as ``cnn`` without the 192 layer, 1600-384-classes.

    725,440 weights for CIFAR-10 without biases; the feature has 384 elements.
    """

    source = "@zhang2024labelskew, Table 7"

    def stages(self) -> tuple[Stage, ...]:
        return _TRUNK
