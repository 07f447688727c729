"""Feature normalization, and the networks that the label-skew paper shows to be equal or close to it.

Variants of n and n_MV: ``text`` divides by max(||.||, 1e-5) (the paper's section 2 and appendix C.1), ``code`` by
max(||.||, 1e-12) (``F.normalize`` of the published code). They differ only where an activation is nearly zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flbench.models.norms.base import PAPER, Norm, ScaleVariant, lone_number, mean_variance, scale, shift
from flbench.models.sites import Site
from flbench.registry import NORMS

if TYPE_CHECKING:
    from torch import nn


@NORMS.register("fn")
@dataclass(frozen=True)
class FeatureNorm(Norm):
    """Feature normalization: sqrt(d) x / max(||x||, eps), on the last feature (label-skew paper, eq. 6, Prop. 1)."""

    equation: ClassVar[str] = "sqrt(d) x / max(||x||, eps) at the feature; eps 1e-5 (text) or 1e-12 (code)"
    source: ClassVar[str] = f"{PAPER}, eq. 7 (Prop. 1) and Table 3 (last layer)"
    only_scales_features: ClassVar[bool] = True

    variant: ScaleVariant = "text"

    def sits(self, site: Site) -> bool:
        return site.position == "feature"

    def layer(self, site: Site) -> nn.Module | None:
        return scale(site.shape, self.variant) if self.sits(site) else None


@NORMS.register("fn-layerwise")
@dataclass(frozen=True)
class LayerwiseFeatureNorm(FeatureNorm):
    """Scale normalization of every activation (label-skew paper, eq. 6); by Prop. 1 fn without biases.

    After the last activation it is at the feature, which pooling and flattening alone separate from that activation: a
    scale before the pooling would cancel after it. Inside ResNet's blocks it does not scale the whole block, and there
    the networks differ.
    """

    equation: ClassVar[str] = "n(x) = sqrt(d) x / max(||x||, eps) after each activation"
    source: ClassVar[str] = f"{PAPER}, eq. 6 and Table 3 (layerwise)"
    only_scales_features: ClassVar[bool] = False

    def sits(self, site: Site) -> bool:
        return super().sits(site) or (site.position == "after" and not site.last)


@NORMS.register("ln-reduced")
@dataclass(frozen=True)
class ReducedLayerNorm(Norm):
    """Mean shifts after each activation, n_MV after the last (label-skew paper, Prop. 2); without biases ln-static.

    In ResNet-18 the blocks are those of eq. 11, whose inner activations keep n_MV. That is not equal to ln-static: the
    inner n_MV hides the scale of x from the branch but not from the shortcut. The published code runs this form in the
    CNN only ("s,s,s,sv").
    """

    equation: ClassVar[str] = "x - mu after each activation, sqrt(d) (x - mu) / max(||x - mu||, eps) after the last"
    source: ClassVar[str] = f"{PAPER}, eq. 8 (Prop. 2), eq. 11 in ResNet-18; Tables 3, 4 and 12"

    variant: ScaleVariant = "text"

    def sits(self, site: Site) -> bool:
        return site.position == "after"

    def problem(self, sites: Sequence[Site]) -> str | None:
        return lone_number(math.prod(site.shape) for site in sites if self.sits(site))

    def layer(self, site: Site) -> nn.Module | None:
        if not self.sits(site):
            return None
        return mean_variance(site.shape, self.variant) if site.last or site.inside else shift(site.shape)


@dataclass(frozen=True)
class _BlockForm(FeatureNorm):
    """Base of Table 13's forms: fn, and a norm after the inner activation of every residual block."""

    def sits(self, site: Site) -> bool:
        return super().sits(site) or (site.position == "after" and site.inside)

    def problem(self, sites: Sequence[Site]) -> str | None:
        return None if any(site.inside for site in sites) else "it has no residual blocks"


@NORMS.register("fn-block-mv")
@dataclass(frozen=True)
class BlockMeanVariance(_BlockForm):
    """Feature normalization, and n_MV inside each residual block (label-skew paper, Table 13)."""

    equation: ClassVar[str] = "block(x) = relu(x + A2 n_MV(relu(A1 x))); n at the feature"
    source: ClassVar[str] = f"{PAPER}, appendix E, Table 13 (n_MV inside), the block of eq. 11 without its shift"

    def problem(self, sites: Sequence[Site]) -> str | None:
        inner = (math.prod(site.shape) for site in sites if self.sits(site) and site.inside)
        return super().problem(sites) or lone_number(inner)

    def layer(self, site: Site) -> nn.Module | None:
        return mean_variance(site.shape, self.variant) if self.sits(site) and site.inside else super().layer(site)


@NORMS.register("fn-block-scale")
@dataclass(frozen=True)
class BlockScale(_BlockForm):
    """Feature normalization, and n inside each residual block (label-skew paper, Table 13)."""

    equation: ClassVar[str] = "block(x) = relu(x + A2 n(relu(A1 x))); n at the feature"
    source: ClassVar[str] = f"{PAPER}, appendix E, Table 13 (n inside)"
