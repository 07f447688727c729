"""Residual networks (He et al. 2016) as the label-skew paper uses them: without any normalization of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from flbench.models.base import Model
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.models.stages import Average, Conv, Stage
from flbench.registry import MODELS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Block(Stage):
    """A basic block: x to relu(shortcut(x) + A2 relu(A1 x)), A1 and A2 convolutions 3x3 (label-skew paper, eq. 9).

    The shortcut is the identity, or a plain 1x1 convolution, never normalized, where the shape changes. Norms after
    the activations make eq. 10, ``norm relu(x + A2 norm relu A1 x)``; norms before them stand after A1 and after A2, on
    the branch, as is usual with batch normalization.
    """

    out: int
    stride: int = 1

    def _convolutions(self) -> tuple[Conv, Conv]:
        return Conv(self.out, kernel=3, stride=self.stride, padding=1), Conv(self.out, kernel=3, padding=1)

    def output(self, shape: Shape) -> Shape:
        return self._convolutions()[0].output(shape)

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        out = self.output(shape)
        inner = Site("before", out, inside=True), Site("after", out, inside=True)
        return *inner, Site("before", out, last=last), Site("after", out, last=last)

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.layers import Conv as ConvLayer
        from flbench.models.layers import Relu, Residual

        before1, after1, before2, after2 = (norm.layer(site) for site in self.sites(shape, last))

        def layer(channels: int, conv: Conv, bias: bool) -> ConvLayer:
            weights = norm.weights((self.out, channels, conv.kernel, conv.kernel))
            options: dict[str, Any] = {"bias": bias, "reparametrization": weights}
            return ConvLayer(channels, self.out, conv.kernel, conv.stride, conv.padding, **options)

        first, second = self._convolutions()
        branch = {
            "conv1": layer(shape[0], first, bias), "before1": before1, "relu1": Relu(), "after1": after1,
            "conv2": layer(self.out, second, bias), "before2": before2,
        }  # fmt: skip
        same = self.stride == 1 and shape[0] == self.out
        shortcut = None if same else layer(shape[0], Conv(self.out, kernel=1, stride=self.stride), bias=False)
        yield "block", Residual({name: layer for name, layer in branch.items() if layer is not None}, shortcut)
        yield "relu", Relu()
        if after2 is not None:
            yield "after", after2


@MODELS.register("resnet18")
@dataclass(frozen=True)
class ResNet18(Model):
    """ResNet-18 for small images: stem 3x3 without pooling, widths 64 to 512, global average, head with a bias.

    11,164,362 weights for 10 classes. The published code gives its stem a learnable normalization of 128 weights even
    in the static form (11,164,490), and passes ``affine`` as that layer's eps, so that it is 0 or 1.0; here every layer
    has eps 1e-5 and is affine or not like the others. It also pools in windows of 4x4 and so has 512, 2,048 or 25,088
    features for images of 32, 64 or 224 pixels; here there are 512 at any size.

    Attributes:
        width: channels of the first group of blocks; each later group has twice as many and half the pixels.
        blocks: number of blocks of each group.
    """

    source = "@he2016resnet; without normalizations of its own: @zhang2024labelskew"
    width: Annotated[int, Field(ge=1)] = 64
    blocks: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (2, 2, 2, 2)

    def stages(self) -> tuple[Stage, ...]:
        blocks = (
            Block(self.width * 2**group, stride=2 if group > 0 and number == 0 else 1)
            for group, count in enumerate(self.blocks)
            for number in range(count)
        )
        return Conv(self.width, kernel=3, padding=1), *blocks, Average()

    def head_has_bias(self, bias: bool) -> bool:
        """Always: that of the published code has one although its convolutions have none."""
        return True
