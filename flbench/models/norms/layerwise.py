"""Normalizations of every activation: layer, group, instance, root-mean-square, batch norm, and dynamic tanh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from flbench.models.norms.base import EPS, PAPER, Norm, lone_number, mean_variance
from flbench.models.sites import Shape, Site
from flbench.registry import NORMS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Layerwise(Norm):
    """Base of the norms of every activation, after the activation function or before it.

    Attributes:
        order: ``after`` as the label-skew paper has it (conv, ReLU, norm, pool), or ``before`` (conv, norm, ReLU).
    """

    order: Literal["after", "before"] = "after"

    def sits(self, site: Site) -> bool:
        return site.position == self.order

    def layer(self, site: Site) -> nn.Module | None:
        return self.module(site.shape) if self.sits(site) else None

    def module(self, shape: Shape) -> nn.Module:
        """The layer for activations of this shape."""
        raise NotImplementedError(f"{type(self).__name__} must define module()")

    def shapes(self, sites: Iterable[Site]) -> Iterator[Shape]:
        """Yield the shapes of all activations that it normalizes."""
        return (site.shape for site in sites if self.sits(site))

    def group(self, shape: Shape) -> int | None:
        """Return how many numbers of one sample share a mean that is subtracted; None where it subtracts none."""
        return None

    def problem(self, sites: Sequence[Site]) -> str | None:
        """A number that is its own mean would become 0."""
        return lone_number(self.group(shape) for shape in self.shapes(sites))


@NORMS.register("ln")
@dataclass(frozen=True)
class LayerNorm(Layerwise):
    """Layer normalization (Ba et al. 2016): (x - mu) / sqrt(sigma^2 + eps), elementwise affine, each activation.

    The label-skew paper's text (section 5.6, "learnable"). Its published code has an affine map a channel instead:
    ``ln-channel``.
    """

    equation: ClassVar[str] = "gamma (x - mu) / sqrt(sigma^2 + 1e-5) + beta, gamma and beta of the shape of x"
    source: ClassVar[str] = f"@ba2016ln, eq. 3 and 4; {PAPER}, section 5.6 and Table 6 (learnable)"

    def group(self, shape: Shape) -> int:
        return math.prod(shape)

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.norm_layers import LayerNorm

        return LayerNorm(shape, eps=EPS)

    def canonical(self) -> Norm:
        """Before the activations it is ``ln-before``."""
        return LayerNormBefore() if type(self) is LayerNorm and self.order == "before" else self


@NORMS.register("ln-static")
@dataclass(frozen=True)
class StaticLayerNorm(Layerwise):
    """Layer normalization without an affine map: n_MV after each activation.

    Variants: ``original`` adds 1e-5 to the variance, as torch and the published code's GroupNorm do (Table 6,
    "static"); ``text`` and ``code`` divide by max(||x - mu||, eps) with eps 1e-5 and 1e-12: the code's layers "sv"
    (Table 3, layerwise).
    """

    equation: ClassVar[str] = "(x - mu) / sqrt(sigma^2 + 1e-5); text, code: sqrt(d) (x - mu) / max(||x - mu||, eps)"
    source: ClassVar[str] = f"{PAPER}, eq. 3 to 5, Tables 3 (layerwise) and 6 (static)"

    variant: Literal["original", "text", "code"] = "original"

    def group(self, shape: Shape) -> int:
        return math.prod(shape)

    def module(self, shape: Shape) -> nn.Module:
        return mean_variance(shape, self.variant)


@NORMS.register("ln-before")
@dataclass(frozen=True)
class LayerNormBefore(LayerNorm):
    """As ln, but before each activation function (label-skew paper, Table 6): conv, norm, ReLU."""

    source: ClassVar[str] = f"@ba2016ln, eq. 3 and 4; {PAPER}, section 5.6 and Table 6 (before)"

    order: Literal["before"] = "before"


@dataclass(frozen=True)
class Grouped(Layerwise):
    """Base of the norms over groups of channels: (x - mu) / sqrt(sigma^2 + eps) within each group of a sample."""

    affine: ClassVar[bool] = True

    def groups_of(self, channels: int) -> int:
        """Number of groups of an activation with this number of channels."""
        raise NotImplementedError(f"{type(self).__name__} must define groups_of()")

    def group(self, shape: Shape) -> int:
        return math.prod(shape) // self.groups_of(shape[0])

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.norm_layers import GroupNorm

        return GroupNorm(self.groups_of(shape[0]), shape, eps=EPS, affine=self.affine)


@NORMS.register("ln-channel")
@dataclass(frozen=True)
class ChannelLayerNorm(Grouped):
    """Layer normalization with an affine map a channel: group normalization with one group.

    What the label-skew paper's published code calls LN. There a deep copy leaves the CNN's affine maps untrained at 1
    and 0, so that its "learnable" CNN is its "static" one; here they are trained.
    """

    equation: ClassVar[str] = "gamma_c (x - mu) / sqrt(sigma^2 + 1e-5) + beta_c, one gamma and beta a channel"
    source: ClassVar[str] = f"{PAPER}, published code (GroupNorm with 1 group); eq. 10 in ResNet-18"

    def groups_of(self, channels: int) -> int:
        return 1


@NORMS.register("gn")
@dataclass(frozen=True)
class GroupNorm(Grouped):
    """Group normalization (Wu & He 2018): as ln within each group of channels, affine a channel.

    Attributes:
        groups: number of groups of every layer. The sources also have ``group_size`` in its place, the channels of a
            group: then wide layers have more groups.
    """

    equation: ClassVar[str] = "gamma_c (x - mu_g) / sqrt(sigma_g^2 + 1e-5) + beta_c, mu and sigma over group g"
    source: ClassVar[str] = f"@wu2018gn, eq. 1 to 6; {PAPER}, Table 4 (2 groups)"

    groups: Annotated[int, Field(ge=1)] = 2
    group_size: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_of_both(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "groups" in fields and fields.get("group_size") is not None:
            raise ValueError("give either groups or group_size")
        return fields

    def groups_of(self, channels: int) -> int:
        return self.groups if self.group_size is None else channels // self.group_size

    def canonical(self) -> Norm:
        """One group: ``ln-channel``, or ``ln-static`` without the affine map; one channel in each group: ``in``."""
        if self.group_size is not None:
            return InstanceNorm(order=self.order) if (type(self), self.group_size) == (GroupNorm, 1) else self
        with_one_group = {GroupNorm: ChannelLayerNorm, StaticGroupNorm: StaticLayerNorm}.get(type(self))
        return with_one_group(order=self.order) if with_one_group and self.groups == 1 else self

    def canonical_among(self, sites: Iterable[Site]) -> Norm:
        """A ``group_size`` that makes equally many groups of every layer is that number of ``groups``."""
        same = self.canonical()
        if self.group_size is None or same is not self:
            return same
        numbers = {self.groups_of(channels) for channels, *_ in self.shapes(sites)}
        return replace(self, groups=numbers.pop(), group_size=None).canonical() if len(numbers) == 1 else self

    def problem(self, sites: Sequence[Site]) -> str | None:
        name, number = ("groups", self.groups) if self.group_size is None else ("group_size", self.group_size)
        for channels, *_ in self.shapes(sites):
            if channels % number:
                return f"{name}={number} does not divide a layer of {channels} channels"
        found = super().problem(sites)
        return f"{found}: use {'fewer groups' if name == 'groups' else 'a larger group_size'}" if found else None


@NORMS.register("gn-static")
@dataclass(frozen=True)
class StaticGroupNorm(GroupNorm):
    """Group normalization without an affine map: the published code's default."""

    equation: ClassVar[str] = "(x - mu_g) / sqrt(sigma_g^2 + 1e-5), mu and sigma over group g"
    source: ClassVar[str] = f"@wu2018gn, eq. 1 to 5; {PAPER}, published code without --affine"
    affine: ClassVar[bool] = False


@NORMS.register("in")
@dataclass(frozen=True)
class InstanceNorm(Layerwise):
    """Instance normalization (Ulyanov et al. 2016): over the pixels of each channel, affine a channel.

    It normalizes the activations that have pixels. A fully connected layer has a single number a channel, which would
    become 0, and is not normalized.
    """

    equation: ClassVar[str] = "gamma_c (x_c - mu_c) / sqrt(sigma_c^2 + 1e-5) + beta_c, mu and sigma over pixels"
    source: ClassVar[str] = "@ulyanov2016in, eq. 4"

    def sits(self, site: Site) -> bool:
        return super().sits(site) and len(site.shape) == 3

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.norm_layers import GroupNorm

        return GroupNorm(shape[0], shape, eps=EPS)

    def group(self, shape: Shape) -> int:
        return math.prod(shape[1:])

    def problem(self, sites: Sequence[Site]) -> str | None:
        return super().problem(sites) if any(self.shapes(sites)) else "no layer has pixels to normalize over"


@NORMS.register("rms")
@dataclass(frozen=True)
class RmsNorm(Layerwise):
    """Root-mean-square normalization (Zhang & Sennrich 2019): ln without centring, elementwise gain."""

    equation: ClassVar[str] = "gamma x / sqrt(mean(x^2) + 1e-5), gamma of the shape of x"
    source: ClassVar[str] = "@zhang2019rms, eq. 4"

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.norm_layers import RmsNorm

        return RmsNorm(shape, eps=EPS)


@NORMS.register("dyt")
@dataclass(frozen=True)
class DynamicTanh(Layerwise):
    """Dynamic Tanh (Zhu et al. 2025): a learned tanh in place of a normalization, which has no statistics at all.

    Attributes:
        alpha: the initial value of alpha, one learned number of each layer; 0.5 in the paper but for large language
            models.
    """

    equation: ClassVar[str] = "gamma_c tanh(alpha x_c) + beta_c, one gamma and beta a channel"
    source: ClassVar[str] = "@zhu2025dyt, eq. 1 and Algorithm 1, and the authors' code"

    alpha: Annotated[float, Field(gt=0)] = 0.5

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.norm_layers import DynamicTanh

        return DynamicTanh(shape, self.alpha)


@NORMS.register("bn")
@dataclass(frozen=True)
class BatchNorm(Layerwise):
    """Batch normalization (Ioffe & Szegedy 2015), a channel over batch and pixels, affine, after each activation.

    Running statistics (momentum 0.1, unbiased variance) are buffers: averaged over clients like parameters, and used at
    evaluation. In the published code all clients of the CNN share one layer that always uses the batch at hand, test
    batches of a single class included, so FedAvg with BN and FedBN were one computation there.
    """

    equation: ClassVar[str] = (
        "gamma_c (x_c - mu_c) / sqrt(sigma_c^2 + 1e-5) + beta_c, mu and sigma over batch and pixels"
    )
    source: ClassVar[str] = f"@ioffe2015bn, Algorithms 1 and 2; {PAPER}, Table 4"

    smallest_batch: ClassVar[int] = 2
    has_batch_norm: ClassVar[bool] = True
    affine: ClassVar[bool] = True

    def module(self, shape: Shape) -> nn.Module:
        from flbench.models.norm_layers import BatchNorm

        return BatchNorm(shape[0], eps=EPS, affine=self.affine)


@NORMS.register("bn-static")
@dataclass(frozen=True)
class StaticBatchNorm(BatchNorm):
    """Batch normalization without an affine map: the published code's default."""

    equation: ClassVar[str] = "(x_c - mu_c) / sqrt(sigma_c^2 + 1e-5), mu and sigma over batch and pixels"
    source: ClassVar[str] = f"@ioffe2015bn, Algorithm 1; {PAPER}, published code without --affine"
    affine: ClassVar[bool] = False
