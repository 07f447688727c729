"""Heads of unit rows: cosine, orthonormal and simplex classifiers.

f is the input of the last layer, w_y the row of class y. With a scale s and unit features every logit is in [-s, s].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flbench.models.heads.base import Head
from flbench.registry import HEADS

if TYPE_CHECKING:
    from torch import nn

_Scale = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class _Cosines(Head):
    """Base of the heads whose logits are scaled cosines.

    Attributes:
        scale: s, or its initial value.
        learned: whether training moves the scale, which then is a parameter like all others.
    """

    scale: _Scale = 10.0
    learned: bool = False

    @property
    def unit_features(self) -> bool:
        return True


@HEADS.register("cosine")
@dataclass(frozen=True)
class Cosine(_Cosines):
    """Scaled cosines between the features and trained rows, without a bias.

    Its rows start as those of the linear head. The scale is fixed, as in CosFace (whose margin is not part of this
    head), or learned from its initial value, as in Gidaris and Komodakis, who start at 10.
    """

    equation: ClassVar[str] = "z_y = s cos(w_y, f), norms at least 1e-5"
    source: ClassVar[str] = "@gidaris2018cosine (learned s); @wang2018cosface (fixed s)"

    def layer(self, features: int, classes: int, bias: bool) -> nn.Module:
        from flbench.models.head_layers import CosineHead

        return CosineHead(features, classes, self.scale, learned=self.learned)


@dataclass(frozen=True)
class _Fixed(Head):
    """Base of the heads whose rows are drawn once, from the seed, and never trained, sent or averaged."""

    trained: ClassVar[bool] = False

    def problem(self, features: int, classes: int) -> str | None:
        if classes <= features:
            return None
        return f"{classes} classes need at least as many features as rows, and the last layer has {features}"


@HEADS.register("frozen")
@dataclass(frozen=True)
class Frozen(_Fixed):
    """Orthonormal rows that are never trained, without a bias.

    Variants: ``fedbabu`` takes the features as they are; ``spherefed`` divides them by their norm, so that the logits
    are bounded. FedBABU's code freezes the rows that torch draws, nearly orthogonal and of norm about 0.58 (``scale:
    0.58``), with a bias, and trains them for personalization after the last round, which flbench does not. SphereFed
    fits one-hot targets by squared error, where flbench uses the method's loss, and solves for the rows after the last
    round.

    Attributes:
        scale: s, common to all rows.
    """

    equation: ClassVar[str] = "z = s W f, W W^T = 1 (spherefed: z = s W f / max(||f||, 1e-5)), W never trained"
    source: ClassVar[str] = "@oh2022fedbabu; @dong2022spherefed"

    variant: Literal["fedbabu", "spherefed"] = "fedbabu"
    scale: _Scale = 1.0

    @property
    def unit_features(self) -> bool:
        return self.variant == "spherefed"

    def layer(self, features: int, classes: int, bias: bool) -> nn.Module:
        from flbench.models.head_layers import FixedHead

        return FixedHead(features, classes, self.scale, simplex=False, unit_features=self.unit_features)


@HEADS.register("etf")
@dataclass(frozen=True)
class Etf(_Cosines, _Fixed):
    """Scaled cosines between the features and a simplex equiangular tight frame that is never trained.

    All rows have norm 1 and all pairs of them the cosine -1/(Y - 1). FedETF's code learns the scale from 10 or 1, by
    model, trains with a balanced softmax (the method ``balanced-softmax``) and puts a linear layer in front, which is
    not part of this head. It draws the frame in the span of a uniform matrix's columns; here that span is uniformly
    distributed, too.
    """

    equation: ClassVar[str] = "z_y = s v_y f / max(||f||, 1e-5), V = sqrt(Y/(Y-1)) (1 - 11^T/Y) U, U U^T = 1"
    source: ClassVar[str] = "@li2023fedetf (FedETF); @papyan2020collapse"

    def layer(self, features: int, classes: int, bias: bool) -> nn.Module:
        from flbench.models.head_layers import FixedHead

        return FixedHead(features, classes, self.scale, simplex=True, unit_features=True, learned=self.learned)

    def problem(self, features: int, classes: int) -> str | None:
        """A frame has two rows at least, and there must be as many features as rows."""
        return "a simplex needs at least 2 classes" if classes < 2 else super().problem(features, classes)
