"""LeNet as NIID-Bench trains it (Li et al. 2022, arXiv 2102.02079)."""

from __future__ import annotations

from dataclasses import dataclass

from flbench.models.base import Model
from flbench.models.stages import Dense, NarrowConv, Stage
from flbench.registry import MODELS


@MODELS.register("lenet")
@dataclass(frozen=True)
class LeNet(Model):
    """NIID-Bench's CNN: conv 5x5 6, pool, conv 5x5 16, pool, 120-84-classes, without padding.

    With ``bias: true``, as in NIID-Bench, it has 44,426 weights for MNIST (256 inputs of the first dense layer) and
    62,006 for CIFAR-10 (400 inputs); the feature has 84 elements. The authors' code applies ReLU before the pooling.
    LeCun et al. (1998) pad images of 28x28 pixels to 32x32, pool by averages and use tanh.
    """

    source = "@lecun1998mnist, as in the code of @li2022niidbench"

    def stages(self) -> tuple[Stage, ...]:
        return NarrowConv(6, kernel=5, pool=2), NarrowConv(16, kernel=5, pool=2), Dense(120), Dense(84)
