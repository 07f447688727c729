"""The stages of a network as data: each a weight layer with its activation, or a pooling.

A stage computes shapes without building anything, so a sweep is checked without torch. ``modules`` builds its torch
modules, and imports torch only then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Stage:
    """One stage of the trunk, which leads from the images to the feature."""

    #: Whether it ends with an activation function.
    activates: ClassVar[bool] = True

    #: Numbers of axes of the samples that it takes: 3 for images, 1 for features, 2 for tokens.
    axes: ClassVar[tuple[int, ...]] = (3,)

    def output(self, shape: Shape) -> Shape:
        """Return the shape of one sample after the stage, for one of ``shape`` before it."""
        raise NotImplementedError(f"{type(self).__name__} must define output()")

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        """Return the places for normalizations, in forward order; ``last``: no later stage has an activation."""
        raise NotImplementedError(f"{type(self).__name__} must define sites()")

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        """Yield the torch modules in order, each with its kind; the kind and the stage's number are its name."""
        raise NotImplementedError(f"{type(self).__name__} must define modules()")


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
        channels, height, width = self.activation(shape)
        return channels, height // self.pool, width // self.pool

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        activation = self.activation(shape)
        return Site("before", activation, last=last), Site("after", activation, last=last)

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.layers import Conv, Pool, Relu

        before, after = (norm.layer(site) for site in self.sites(shape, last))
        weights = norm.weights((self.out, shape[0], self.kernel, self.kernel))
        options: dict[str, Any] = {"bias": bias, "reparametrization": weights}
        yield "conv", Conv(shape[0], self.out, self.kernel, self.stride, self.padding, **options)
        if before is not None:
            yield "before", before
        # max commutes with the monotone ReLU, bit for bit, and pooling first leaves a quarter of the work;
        # not so where a norm stands between them.
        pool = [("pool", Pool(self.pool))] if self.pool > 1 else []
        yield from [*pool, ("relu", Relu())] if after is None else [("relu", Relu()), ("after", after), *pool]


@dataclass(frozen=True)
class NarrowConv(Conv):
    """A convolution of few channels, computed together with its pooling and ReLU if no norm stands between them."""

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.layers import PooledConv

        layers = list(super().modules(shape, last, norm, bias))
        if (
            [kind for kind, _ in layers] != ["conv", "pool", "relu"]
            or self.stride > 1
            or layers[0][1].reparametrization
        ):
            yield from layers
        else:
            yield "conv", PooledConv(shape[0], self.out, self.kernel, self.padding, self.pool, bias=bias)


@dataclass(frozen=True)
class Dense(Stage):
    """A fully connected layer and ReLU, on flattened input."""

    axes: ClassVar[tuple[int, ...]] = (1, 3)

    out: int

    def output(self, shape: Shape) -> Shape:
        return (self.out,)

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        return Site("before", (self.out,), last=last), Site("after", (self.out,), last=last)

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.layers import Dense, Flatten, Relu

        before, after = (norm.layer(site) for site in self.sites(shape, last))
        if len(shape) == 3:
            yield "flatten", Flatten()
        features = math.prod(shape)
        yield "dense", Dense(features, self.out, bias=bias, reparametrization=norm.weights((self.out, features)))
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
        return shape[:1]

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        """None: the feature has a site of its own."""
        return ()

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.layers import GlobalAverage

        yield "average", GlobalAverage()


@dataclass(frozen=True)
class Embed(Stage):
    """A vector of ``width`` numbers for each token, as an image (width, 1, T) of one row."""

    activates: ClassVar[bool] = False
    axes: ClassVar[tuple[int, ...]] = (2,)

    width: int

    def output(self, shape: Shape) -> Shape:
        return self.width, 1, shape[0]

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        return ()

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.token_layers import Embedding

        yield "embedding", Embedding(shape[1], self.width)


@dataclass(frozen=True)
class Convolve(Stage):
    """A convolution over ``kernel`` tokens in a row, ReLU, and each channel's maximum over the sequence."""

    out: int
    kernel: int

    def activation(self, shape: Shape) -> Shape:
        """Shape (C, 1, T) of the activation, before the maximum."""
        return self.out, 1, shape[2] - self.kernel + 1

    def output(self, shape: Shape) -> Shape:
        return (self.out,) if self.activation(shape)[2] > 0 else (0,)

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        activation = self.activation(shape)
        return Site("before", activation, last=last), Site("after", activation, last=last)

    def modules(self, shape: Shape, last: bool, norm: Norm, bias: bool) -> Iterator[tuple[str, nn.Module]]:
        from flbench.models.layers import Conv, Relu
        from flbench.models.token_layers import GlobalMax

        before, after = (norm.layer(site) for site in self.sites(shape, last))
        weights = norm.weights((self.out, shape[0], 1, self.kernel))
        yield "conv", Conv(shape[0], self.out, (1, self.kernel), bias=bias, reparametrization=weights)
        if before is not None:
            yield "before", before
        yield "relu", Relu()
        if after is not None:
            yield "after", after
        yield "maximum", GlobalMax()


@dataclass(frozen=True)
class Step:
    """A stage at its place: the shape of its input, and whether no later stage has an activation."""

    stage: Stage
    shape: Shape
    last: bool
