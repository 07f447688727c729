"""A model as data: a row of stages, each a weight layer (or a residual block) with its activation, and a linear head.

The description knows every shape without building anything, so a sweep is checked without torch. A stage also knows
its torch modules, and imports torch only when asked for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from flbench.registry import Component

if TYPE_CHECKING:
    from torch import nn

    from flbench.models.norms import Norm

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A place where a normalization may sit.

    Attributes:
        position: ``before`` or ``after`` an activation function (after it, but before the pooling); ``feature``, the
            input of the head; ``logits``, its output.
        shape: shape of one sample there: (C, H, W) or (D,).
        inside: whether the activation is within a residual block, so that a path leads around it.
        last: whether it is the last activation of the network.
    """

    position: Literal["before", "after", "feature", "logits"]
    shape: Shape
    inside: bool = False
    last: bool = False


@dataclass(frozen=True)
class Stage:
    """One step of the trunk, from the images towards the feature."""

    #: Whether it ends with an activation function.
    activates: ClassVar[bool] = True

    def output(self, shape: Shape) -> Shape:
        """Shape of one sample after the stage, for one of ``shape`` before it."""
        raise NotImplementedError(f"{type(self).__name__} must say the shape it makes")

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        """The places for normalizations, in the order of the forward pass; ``last``: no later stage activates."""
        raise NotImplementedError(f"{type(self).__name__} must say where a normalization may sit")

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        """The torch modules in order, each with its kind; the kind and the stage's number are its name."""
        raise NotImplementedError(f"{type(self).__name__} must say its modules")


@dataclass(frozen=True)
class Conv(Stage):
    """A square convolution, ReLU, then max-pooling with windows of ``pool``."""

    out: int
    kernel: int
    pool: int = 1
    stride: int = 1
    padding: int = 0

    def activation(self, shape: Shape) -> Shape:
        """Shape (C, H, W) of the activation, before the pooling."""
        _, *pixels = shape
        height, width = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in pixels)
        return self.out, height, width

    def output(self, shape: Shape) -> Shape:
        """Shape after the pooling."""
        channels, height, width = self.activation(shape)
        return channels, height // self.pool, width // self.pool

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        """Before and after the ReLU."""
        activation = self.activation(shape)
        return Site("before", activation, last=last), Site("after", activation, last=last)

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        """Convolution, ReLU and pooling with the norms between them."""
        from flbench.models.layers import Conv, Pool, Relu

        before, after = (norm.layer(site) for site in self.sites(shape, last))
        yield "conv", Conv(shape[0], self.out, self.kernel, self.stride, self.padding, bias=bias)
        if before is not None:
            yield "before", before
        # max commutes with the monotone ReLU, bit for bit, and pooling first leaves a quarter of the work;
        # not so where a norm stands between them.
        pool = [("pool", Pool(self.pool))] if self.pool > 1 else []
        yield from [*pool, ("relu", Relu())] if after is None else [("relu", Relu()), ("after", after), *pool]


@dataclass(frozen=True)
class Dense(Stage):
    """A fully connected layer and ReLU; what comes in is flattened."""

    out: int

    def output(self, shape: Shape) -> Shape:
        """Shape (D,)."""
        return (self.out,)

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        """Before and after the ReLU."""
        return Site("before", (self.out,), last=last), Site("after", (self.out,), last=last)

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        """Product and ReLU with the norms between them."""
        from flbench.models.layers import Dense, Flatten, Relu

        before, after = (norm.layer(site) for site in self.sites(shape, last))
        if len(shape) == 3:
            yield "flatten", Flatten()
        yield "dense", Dense(math.prod(shape), self.out, bias=bias)
        if before is not None:
            yield "before", before
        yield "relu", Relu()
        if after is not None:
            yield "after", after


@dataclass(frozen=True)
class Average(Stage):
    """Global average pooling: every channel's mean over its pixels."""

    activates: ClassVar[bool] = False

    def output(self, shape: Shape) -> Shape:
        """Shape (C,)."""
        return shape[:1]

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        """None: the feature has a site of its own."""
        return ()

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        """The mean."""
        from flbench.models.layers import GlobalAverage

        yield "average", GlobalAverage()


@dataclass(frozen=True)
class Step:
    """A stage at its place: the shape that comes in, and whether no later stage has an activation."""

    stage: Stage
    shape: Shape
    last: bool

    def sites(self) -> tuple[Site, ...]:
        """Its places for normalizations."""
        return self.stage.sites(self.shape, self.last)

    def modules(self, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        """Its modules."""
        return self.stage.modules(self.shape, self.last, norm, bias)


@dataclass(frozen=True)
class Model(Component):
    """Base of the networks; a subclass says its stages, or has a ``build`` of its own."""

    def stages(self) -> tuple[Stage, ...]:
        """The stages before the head, in order; at least one, unless the model builds itself."""
        if not self._builds_itself():
            raise NotImplementedError(f"{type(self).__name__} must say its stages")
        return ()

    def head_has_bias(self, bias: bool) -> bool:
        """Whether the head has a bias, for the experiment's ``bias``: here the same."""
        return bias

    def steps(self, image: Shape) -> Iterator[Step]:
        """Every stage with the shape that it meets, for images of shape (C, H, W)."""
        shape: Shape = image
        stages = self.stages()
        final = max((number for number, stage in enumerate(stages) if stage.activates), default=-1)
        for number, stage in enumerate(stages):
            yield Step(stage, shape, last=number == final)
            shape = stage.output(shape)

    def output(self, image: Shape) -> Shape:
        """Shape of one sample after the last stage; flattened, it is the head's input."""
        shape: Shape = image
        for stage in self.stages():
            shape = stage.output(shape)
        return shape

    def sites(self, image: Shape) -> Iterator[Site]:
        """Every place for a normalization up to the feature, in the order of the forward pass.

        The place at the logits follows; it alone depends on the number of classes.
        """
        for step in self.steps(image):
            yield from step.sites()
        yield Site("feature", (math.prod(self.output(image)),))

    def ignores(self, norm: Norm, image: Shape, classes: int) -> str | None:
        """Why a norm would not change this network, or None. A model that builds itself is built to find that out."""
        if self._builds_itself():
            from flbench.models.network import unchanged_by

            return unchanged_by(self, norm, image, classes)
        if any(map(norm.sits, (*self.sites(image), Site("logits", (classes,))))):
            return None
        return "no layer of the network has a place for it, so that it would change nothing: use norm: none"

    def _builds_itself(self) -> bool:
        return type(self).build is not Model.build

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
