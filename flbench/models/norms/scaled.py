"""The control for feature normalization: a constant factor, which has FN's step size and none of its bounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.models.norms.base import PAPER, Norm
from flbench.models.sites import Site
from flbench.registry import NORMS

if TYPE_CHECKING:
    from torch import nn


@NORMS.register("scale")
@dataclass(frozen=True)
class Scale(Norm):
    """No normalization: features times a constant that gives them FN's length sqrt(d) at initialization.

    FN does two things: it makes features as long as sqrt(d), and with them the steps of the head, and it bounds them.
    This does the first alone. The factor is sqrt(d) over the mean of ||x|| (the mean of the lengths, not the root of
    their mean square) in the run's own initial network, over 256 images of the run's training set, drawn by its seed.
    It never changes, and is neither sent nor averaged. All methods and partitions of a seed have the same.

    Attributes:
        factor: the factor itself; then nothing is measured.
    """

    equation: ClassVar[str] = "c x at the feature, c = sqrt(d) / mean ||x|| in the initial network, or c = factor"
    source: ClassVar[str] = f"the control for fn ({PAPER}, eq. 7): its length at initialization, without its bound"

    only_scales_features: ClassVar[bool] = True

    factor: Annotated[float, Field(gt=0)] | None = None

    def sits(self, site: Site) -> bool:
        return site.position == "feature"

    def layer(self, site: Site) -> nn.Module | None:
        from flbench.models.norm_layers import Factor

        return Factor(site.shape, self.factor) if self.sits(site) else None

    def canonical(self) -> Norm:
        """With the factor 1 it is ``none``."""
        return Norm() if self.factor == 1 else self


@NORMS.register("scale-layerwise")
@dataclass(frozen=True)
class LayerwiseScale(Scale):
    """The control for fn-layerwise: a factor where that norm has a scale, each measured with the earlier ones in place.

    A given ``factor`` is that of every layer.
    """

    equation: ClassVar[str] = "c_l x after each activation, c_l = sqrt(d) / mean ||x|| in the initial network"
    source: ClassVar[str] = f"the control for fn-layerwise ({PAPER}, eq. 6 and Table 3)"
    only_scales_features: ClassVar[bool] = False

    def sits(self, site: Site) -> bool:
        return super().sits(site) or (site.position == "after" and not site.last)

    def canonical_among(self, sites: Iterable[Site]) -> Norm:
        """With one activation it is ``scale``."""
        alone = all(site.position == "feature" for site in sites if self.sits(site))
        return Scale(self.factor).canonical() if alone else self.canonical()
