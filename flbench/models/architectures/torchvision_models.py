"""Torchvision's classification networks by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flbench.errors import DataMissing, UserError
from flbench.messages import by_similarity, did_you_mean, unknown, unknown_message
from flbench.models.base import Model
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.registry import MODELS

if TYPE_CHECKING:
    from torch import nn

#: Families of architectures, each with its members; named here, because torchvision imports torch.
_FAMILIES = {
    "alexnet": "",
    "convnext_": "tiny small base large",
    "densenet": "121 161 169 201",
    "efficientnet_": "b0 b1 b2 b3 b4 b5 b6 b7 v2_s v2_m v2_l",
    "googlenet": "",
    "inception_v3": "",
    "maxvit_t": "",
    "mnasnet": "0_5 0_75 1_0 1_3",
    "mobilenet_": "v2 v3_small v3_large",
    "regnet_": "x_400mf x_800mf x_1_6gf x_3_2gf x_8gf x_16gf x_32gf y_400mf y_800mf y_1_6gf y_3_2gf y_8gf y_16gf "
    "y_32gf y_128gf",
    "resnet": "18 34 50 101 152",
    "resnext": "50_32x4d 101_32x8d 101_64x4d",
    "shufflenet_v2_": "x0_5 x1_0 x1_5 x2_0",
    "swin_": "t s b v2_t v2_s v2_b",
    "vgg": "11 13 16 19 11_bn 13_bn 16_bn 19_bn",
    "vit_": "b_16 b_32 l_16 l_32 h_14",
    "wide_resnet": "50_2 101_2",
}
ARCHITECTURES = tuple(f"{family}{one}" for family, members in _FAMILIES.items() for one in members.split() or [""])

#: Similar names that the message about an unknown architecture lists.
_NAMED = 8

#: Families whose first layers shrink images of 224x224 pixels, and need not shrink small ones.
_WITH_STEM = ("densenet", "efficientnet_", "mnasnet", "mobilenet_", "regnet_", "resne", "shufflenet_v2_", "wide_resnet")


@MODELS.register("torchvision")
@dataclass(frozen=True)
class Torchvision(Model):
    """A classification network of torchvision, by its name there: ``torchvision:resnet18``.

    The last dense layer is the module ``head``, with a bias whatever ``bias`` says; the rest is ``body``, whose layers
    have the biases that torchvision gives them. Grey images become three equal channels. Weights start as torchvision's
    own, drawn by the seed, or from ``init: torchvision``.

    Attributes:
        arch: the name.
        norms: where normalization layers come from. ``axis``: ``norm`` replaces every one of torchvision's, at its
            place in the network, so that ``none`` leaves none. ``own``: they are torchvision's, as its weights need
            them, and ``norm`` only adds one at the feature or at the logits.
        small: whether the first convolution has stride 1 and a kernel of at most 3x3, without the pooling after it,
            as is usual for images of 32x32 pixels. Torchvision's weights do not fit a changed kernel.
        size: side in pixels to which images are resized first (bilinear); default: as they are.
    """

    source: ClassVar[str] = ""
    shorthand: ClassVar[str] = "arch"

    arch: str
    norms: Literal["axis", "own"] = "axis"
    small: bool = False
    size: Annotated[int, Field(ge=1, le=1024)] | None = None

    def __post_init__(self) -> None:
        """Refuse architectures that torchvision does not have, and those without a stem that could be changed."""
        if self.arch not in ARCHITECTURES:
            near = by_similarity(self.arch, ARCHITECTURES)[:_NAMED]
            rest = f"and {len(ARCHITECTURES) - _NAMED} more of torchvision's classification networks"
            hint = did_you_mean(self.arch, near)
            raise ValueError(unknown_message(f"architecture {self.arch[:80]!r}", hint, [*near, rest]))
        if self.small and not self.arch.startswith(_WITH_STEM):
            raise ValueError(f"small: {self.arch} has no first layers that could keep the size of images")

    def sites(self, image: Shape) -> Iterator[Site]:
        """The places of torchvision's normalizations, if the axis has them, and the feature; builds the network."""
        from flbench.models.torchvision_network import sites

        yield from sites(self.arch, image, self.small, self.size, self.norms == "axis")

    def own_name(self, name: str) -> str:
        """``body.`` before torchvision's name, but for the last dense layer."""
        from flbench.models.torchvision_network import head_path

        if name.startswith(("body.", "head.")):
            return name
        head = f"{head_path(self.arch)}."
        return f"head.{name.removeprefix(head)}" if name.startswith(head) else f"body.{name}"

    def weights_at(self, weights: str | None) -> Path:
        import torch
        from torchvision.models import get_model_weights

        known = get_model_weights(self.arch)
        if weights is not None and weights not in known.__members__:
            raise UserError(unknown("weights", weights, known.__members__, self.arch))
        chosen = known.DEFAULT if weights is None else known[weights]
        path = Path(torch.hub.get_dir()) / "checkpoints" / Path(chosen.url).name
        if not path.is_file():
            raise DataMissing(
                f"there is no file {path} with torchvision's {chosen.name} of {self.arch}; download {chosen.url} to it "
                "(its terms are torchvision's and those of the training data), or use init: file:PATH"
            )
        return path

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        from flbench.models.body_network import BodyNetwork
        from flbench.models.torchvision_network import network

        made, replaces = network(self.arch, self.small), self.norms == "axis"
        return BodyNetwork(f"torchvision:{self.arch}", made, image, classes, norm, replaces, self.size)
