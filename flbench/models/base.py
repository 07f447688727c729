"""A model as data: a row of stages, each a weight layer with its activation, and a linear head.

The description knows every shape without building anything, so a sweep is checked without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flbench.registry import Component

if TYPE_CHECKING:
    from torch import nn

    from flbench.models.norms import Norm

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Conv:
    """A square convolution without padding, stride 1, ReLU, then max-pooling with windows of ``pool``."""

    out: int
    kernel: int
    pool: int = 1

    def activation(self, shape: Shape) -> Shape:
        """Shape (C, H, W) of the activation for an input of ``shape``, before the pooling."""
        _, height, width = shape
        return self.out, height - self.kernel + 1, width - self.kernel + 1

    def output(self, shape: Shape) -> Shape:
        """Shape after the pooling."""
        channels, height, width = self.activation(shape)
        return channels, height // self.pool, width // self.pool


@dataclass(frozen=True)
class Dense:
    """A fully connected layer and ReLU; what comes in is flattened."""

    out: int

    def activation(self, shape: Shape) -> Shape:
        """Shape (D,) of the activation."""
        return (self.out,)

    def output(self, shape: Shape) -> Shape:
        """The same as the activation's."""
        return (self.out,)


Stage = Conv | Dense


@dataclass(frozen=True)
class Site:
    """A place where a normalization may sit: one activation of the network, before or after its non-linearity.

    Attributes:
        order: whether the place is before or after the activation function (after it, but before the pooling).
        last: whether this activation is the feature, the input of the head.
        shape: shape of one sample there, (C, H, W) or (D,).
    """

    order: Literal["before", "after"]
    last: bool
    shape: Shape


@dataclass(frozen=True)
class Model(Component):
    """Base of the networks; a subclass says its stages."""

    def stages(self) -> tuple[Stage, ...]:
        """The weight layers before the head, in order; at least one."""
        raise NotImplementedError(f"{type(self).__name__} must say its stages")

    def sites(self, image: Shape) -> Iterator[Site]:
        """Every place for a normalization, in the order of the forward pass, for images of shape (C, H, W)."""
        shape: Shape = image
        stages = self.stages()
        for index, stage in enumerate(stages):
            activation = stage.activation(shape)
            last = index == len(stages) - 1
            yield Site(order="before", last=last, shape=activation)
            yield Site(order="after", last=last, shape=activation)
            shape = stage.output(shape)

    def problem(self, image: Shape) -> str | None:
        """Why images of this shape do not fit, or None."""
        shape: Shape = image
        for number, stage in enumerate(self.stages(), start=1):
            shape = stage.output(shape)
            if min(shape) < 1:
                return f"images of {image[1]}x{image[2]} pixels are too small (nothing is left after layer {number})"
        return None

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        """The torch module: images (B, C, H, W) to (features (B, D), logits (B, classes))."""
        from flbench.models.network import Network

        return Network(self, image, classes, norm, bias)
