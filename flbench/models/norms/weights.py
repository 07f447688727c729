"""Weight standardization: normalization of the weights in place of the activations, or beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from flbench.models.norms.base import Norm
from flbench.models.norms.layerwise import GroupNorm
from flbench.models.sites import Shape, Site
from flbench.registry import NORMS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Standardized(Norm):
    """Base of the norms of weights; the head's weight and all biases stay as they are.

    Attributes:
        layers: ``conv``, the convolutions alone, as all sources have it, or ``all``, dense layers too.
    """

    layers: Literal["conv", "all"] = "conv"

    def standardized(self, shape: Shape) -> nn.Module:
        """Return the module that maps the weights of this shape."""
        raise NotImplementedError(f"{type(self).__name__} must define standardized()")

    def weights(self, shape: Shape) -> nn.Module | None:
        """Of the chosen layers, except those with one weight an output, which has no statistics."""
        chosen = self.layers == "all" or len(shape) == 4
        return self.standardized(shape) if chosen and math.prod(shape[1:]) > 1 else None

    def changes(self, sites: Iterable[Site]) -> bool:
        return True

    def problem(self, sites: Sequence[Site]) -> str | None:
        images = [len(site.shape) == 3 for site in sites if site.position == "before"]
        if not any(images) and self.layers == "conv":
            return "no layer is a convolution" + (": use layers: all" if images else "")
        return super().problem(sites) if images else "no layer has weights that it can standardize"

    def canonical_among(self, sites: Iterable[Site]) -> Norm:
        """Where all layers are convolutions, ``all`` of them are ``conv``."""
        sites = tuple(sites)
        convolutions = all(len(site.shape) == 3 for site in sites if site.position == "before")
        if self.layers == "all" and convolutions:
            return replace(self, layers="conv").canonical_among(sites)
        return super().canonical_among(sites)


@NORMS.register("ws")
@dataclass(frozen=True)
class WeightStandardization(_Standardized):
    """Weight standardization (Qiao et al. 2019): the weights of each output have mean 0 and variance 1.

    Activations are not normalized; without a normalization they grow with the fan-in of every layer, so that it needs
    small learning rates. The source uses it with group normalization: ``gn-ws``.

    Variants: ``text`` adds eps = 1e-5 to the variance; the authors' ``code`` adds it to the standard deviation, which
    is torch's, with n - 1 degrees of freedom.
    """

    equation: ClassVar[str] = "conv weights (w - mu) / sqrt(sigma^2 + 1e-5) over each output's fan-in"
    source: ClassVar[str] = "@qiao2019ws"

    variant: Literal["text", "code"] = "text"

    def standardized(self, shape: Shape) -> nn.Module:
        from flbench.models.weight_layers import StandardizedWeight

        return StandardizedWeight(shape, unbiased=self.variant == "code")


@NORMS.register("gn-ws")
@dataclass(frozen=True)
class GroupNormWithStandardizedWeights(WeightStandardization, GroupNorm):
    """Weight standardization with group normalization before each activation (Qiao et al. 2019): conv, GN, ReLU."""

    equation: ClassVar[str] = "ws, and gamma_c (x - mu_g) / sqrt(sigma_g^2 + 1e-5) + beta_c over group g of channels"
    source: ClassVar[str] = "@qiao2019ws (GN + WS)"

    order: Literal["after", "before"] = "before"


@NORMS.register("ws-scaled")
@dataclass(frozen=True)
class ScaledWeightStandardization(_Standardized):
    """Scaled weight standardization (Brock et al. 2021): ws over sqrt(fan-in), times ReLU's gain and a learned one.

    The weights keep the variance of activations through ReLU layers, so that no other normalization is needed. The
    paper multiplies the weights by sqrt(2 / (1 - 1/pi)); the authors' code multiplies the output of each ReLU by it,
    which without biases is the same function of the weights. The floor 1e-4 is the code's. FedWon (Zhuang & Lyu 2024)
    is FedAvg with ``norm: ws-scaled`` and adaptive gradient clipping, ``agc: 0.1`` for example.

    Attributes:
        learned: whether each output has a learned gain, as in the authors' code.
    """

    equation: ClassVar[str] = "conv weights g_c sqrt(2 / (1 - 1/pi)) (w - mu) / sqrt(max(n sigma^2, 1e-4)), n = fan-in"
    source: ClassVar[str] = "@brock2021ws; with agc FedWon: @zhuang2024fedwon, eq. 1"

    learned: bool = True

    def standardized(self, shape: Shape) -> nn.Module:
        from flbench.models.weight_layers import ScaledStandardizedWeight

        return ScaledStandardizedWeight(shape, learned=self.learned)
