"""Normalizations as data: which layer sits at which site of a network.

A norm is asked at every :class:`~flbench.models.base.Site` and answers with a torch module or with nothing, so where it
sits is its own affair and no model is copied for it. The modules themselves are in ``flbench.models.layers``.

Notation: x is the activation of one sample, over all its elements (C, H, W) or (D,); d is their number;
mu and sigma are mean and (biased) standard deviation over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from flbench.models.base import Model, Shape, Site
from flbench.registry import NORMS, Component

if TYPE_CHECKING:
    from torch import nn

#: Added to variances, and the floor of norms, everywhere (label-skew paper, appendix C.1).
EPS = 1e-5


@NORMS.register("none")
@dataclass(frozen=True)
class Norm(Component):
    """No normalization; the base of all others."""

    #: Fewest samples in a training batch that the norm can work with.
    smallest_batch: ClassVar[int] = 1

    def layer(self, site: Site) -> nn.Module | None:
        """The module at ``site``, or None where this norm does not sit."""
        return None

    def problem(self, model: Model, image: Shape) -> str | None:
        """Why this norm does not fit the model on images of this shape, or None."""
        return None


@NORMS.register("fn")
@dataclass(frozen=True)
class FeatureNorm(Norm):
    """Feature normalization: sqrt(d) x / max(||x||, eps), on the last feature (label-skew paper, eq. 6, Prop. 1)."""

    def layer(self, site: Site) -> nn.Module | None:
        """After the last activation."""
        from flbench.models.layers import ScaleNorm

        return ScaleNorm(site.shape, eps=EPS) if site.last and site.order == "after" else None


@NORMS.register("ln")
@dataclass(frozen=True)
class LayerNorm(Norm):
    """Layer normalization (Ba et al. 2016): (x - mu) / sqrt(sigma^2 + eps), elementwise affine, each activation."""

    def layer(self, site: Site) -> nn.Module | None:
        """After every activation."""
        from flbench.models.layers import LayerNorm

        return LayerNorm(site.shape, eps=EPS) if site.order == "after" else None


@NORMS.register("gn")
@dataclass(frozen=True)
class GroupNorm(Norm):
    """Group normalization (Wu & He 2018): as ln within each of ``groups`` channel groups, affine a channel."""

    groups: Annotated[int, Field(ge=1)] = 2

    def layer(self, site: Site) -> nn.Module | None:
        """After every activation."""
        from flbench.models.layers import GroupNorm

        return GroupNorm(self.groups, site.shape[0], eps=EPS) if site.order == "after" else None

    def problem(self, model: Any, image: Shape) -> str | None:
        """The groups must divide the channels of every activation."""
        for site in model.sites(image):
            if site.shape[0] % self.groups:
                return f"groups={self.groups} does not divide a layer of {site.shape[0]} channels"
        return None


@NORMS.register("bn")
@dataclass(frozen=True)
class BatchNorm(Norm):
    """Batch normalization (Ioffe & Szegedy 2015), a channel over batch and pixels, affine, after each activation.

    Running statistics (momentum 0.1, unbiased variance) are buffers: averaged over clients like parameters, and used at
    evaluation.
    """

    smallest_batch: ClassVar[int] = 2

    def layer(self, site: Site) -> nn.Module | None:
        """After every activation."""
        from flbench.models.layers import BatchNorm

        return BatchNorm(site.shape[0], eps=EPS) if site.order == "after" else None
