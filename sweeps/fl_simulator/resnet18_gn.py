"""torchvision's ResNet-18 with group normalization, as in FL-Simulator: the plug-in of ``cifar10.yaml`` beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torchvision
from pydantic import Field
from torch import Tensor, nn

from flbench.models.base import Model
from flbench.models.norms.base import Norm
from flbench.registry import MODELS


class Network(nn.Module):
    """A ResNet whose last layer is named ``head``; images (B, 3, H, W) to features (B, 512) and logits (B, Y)."""

    def __init__(self, classes: int, groups: int) -> None:
        super().__init__()
        self.body = torchvision.models.resnet18(norm_layer=lambda channels: nn.GroupNorm(groups, channels))
        self.head = nn.Linear(self.body.fc.in_features, classes)
        self.body.fc = nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        features = self.body(images)
        return features, self.head(features)


@MODELS.register("torchvision-resnet18-gn")
@dataclass(frozen=True)
class ResNet18Gn(Model):
    """torchvision's ResNet-18 with group normalization in place of batch normalization, in shortcuts, too.

    Its stem, made for larger images, has a convolution 7x7 of stride 2 and a pooling of stride 2, so that the last
    group of blocks sees one pixel of a CIFAR image. The model ``resnet18`` has neither, and no norms in shortcuts.
    """

    source: ClassVar[str] = "the code of woodenchild95/FL-Simulator"
    groups: Annotated[int, Field(ge=1)] = 2

    def build(self, image: tuple[int, int, int], classes: int, norm: Norm, bias: bool) -> nn.Module:
        """Return the network with torchvision's initial weights; norm and bias are its own."""
        return Network(classes, self.groups)
