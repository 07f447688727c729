"""The contract of a normalization, and the definitions that several share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from flbench.models.sites import Shape, Site
from flbench.registry import NORMS, Component

if TYPE_CHECKING:
    from torch import nn

#: How sources name the label-skew paper.
PAPER = "@zhang2024labelskew"

#: Added to variances, and the floor of norms, everywhere (label-skew paper, appendix C.1).
EPS = 1e-5

#: Where the label-skew paper's text and its published code differ in the floor of ||x||: 1e-5 and 1e-12.
ScaleVariant = Literal["text", "code"]

_FLOORS: dict[ScaleVariant, float] = {"text": EPS, "code": 1e-12}


@NORMS.register("none")
@dataclass(frozen=True)
class Norm(Component):
    """No normalization; the base of all others."""

    equation: ClassVar[str] = "x"
    source: ClassVar[str] = f"{PAPER}, section 2: the vanilla network"

    #: Fewest samples in a training batch that the norm can work with.
    smallest_batch: ClassVar[int] = 1

    #: Whether it does nothing but multiply each sample's features by a positive number.
    only_scales_features: ClassVar[bool] = False

    #: Whether it has layers of batch normalization. A norm of another package that has some sets it.
    has_batch_norm: ClassVar[bool] = False

    #: Whether it says what clients and server do with batch statistics. Then it exists in federated training only, and
    #: with methods that leave batch statistics to it.
    is_policy: ClassVar[bool] = False

    #: Whether its running statistics stay on the clients, so that there is no shared model.
    keeps_statistics: ClassVar[bool] = False

    #: Whether its layers combine all participants of a round in every step, which then are always one stack.
    lock_step: ClassVar[bool] = False

    def layer(self, site: Site) -> nn.Module | None:
        """Return the module at ``site``, or None if this norm has none there."""
        return None

    def sits(self, site: Site) -> bool:
        """Return whether there is a module at ``site``; override it if that is known without importing torch."""
        return self.layer(site) is not None

    def weights(self, shape: Shape) -> nn.Module | None:
        """Return the module that maps the weights (out, in, k, k) or (out, in) of a layer before their use, or None."""
        return None

    def changes(self, sites: Iterable[Site]) -> bool:
        """Return whether it changes a network with these sites, which it fits."""
        return any(map(self.sits, sites))

    def canonical(self) -> Norm:
        """Return the representative of the norms that compute the same; it enters the run id."""
        return self

    def canonical_among(self, sites: Iterable[Site]) -> Norm:
        """Return the representative in a network with these sites, where more norms may compute the same."""
        return self.canonical()

    def problem(self, sites: Sequence[Site]) -> str | None:
        """Return why this norm does not fit a network with these sites, or None."""
        return None


def lone_number(groups: Iterable[int | None]) -> str | None:
    """Return why numbers cannot be centred in groups of these sizes, or None: a number that is its own mean becomes 0.

    The output of such a layer is constant: nothing before it is trained.
    """
    return "a group of a layer is a single number, which it would set to 0" if 1 in groups else None


def scale(shape: Shape, variant: ScaleVariant) -> nn.Module:
    """n(x) = sqrt(d) x / max(||x||, eps), eps by the variant."""
    from flbench.models.norm_layers import ScaleNorm

    return ScaleNorm(shape, eps=_FLOORS[variant])


def shift(shape: Shape) -> nn.Module:
    """s(x) = x - mu."""
    from flbench.models.norm_layers import MeanShift

    return MeanShift(shape)


def mean_variance(shape: Shape, variant: Literal["original", "text", "code"]) -> nn.Module:
    """Return n_MV(x), with one of three ways to avoid a division by zero.

    ``original`` is (x - mu) / sqrt(sigma^2 + 1e-5) of Ba et al. 2016 and of torch; the two others are n(s(x)), the
    paper's eq. 5, with the floors of :func:`scale`.
    """
    from torch import nn

    from flbench.models.norm_layers import LayerNorm

    if variant == "original":
        return LayerNorm(shape, eps=EPS, affine=False)
    return nn.Sequential(shift(shape), scale(shape, variant))
