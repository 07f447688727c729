"""The contract of a head, from the features to the logits, and the linear one, its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flbench.registry import HEADS, Component

if TYPE_CHECKING:
    from torch import nn


def is_of_head(name: str) -> bool:
    """Return whether a network's parameter or buffer belongs to the head: the module ``head``, the last layer.

    All else is the body, MOON's projection included (``head: projection``): its output are the features, R_w in MOON's
    paper, and the classifiers of FedPer, FedRep and FedBABU are the one layer after the features.
    """
    return name.startswith("head.")


@HEADS.register("linear")
@dataclass(frozen=True)
class Head(Component):
    """A linear map of the features; the base of all others."""

    equation: ClassVar[str] = "z = W f + b"
    source: ClassVar[str] = "@zhang2024labelskew, section 2"

    #: Whether training moves the weight; if not, it is a buffer that the engine never averages.
    trained: ClassVar[bool] = True

    @property
    def unit_features(self) -> bool:
        """Return whether it divides each sample's features by their norm, so that their length does not matter."""
        return False

    def layer(self, features: int, classes: int, bias: bool) -> nn.Module:
        """Return the last layer, f_BD to z_BY, whose ``weight`` is (Y, D); ``bias``: whether a linear one has a bias.

        Args:
            features: D, what ``width`` returned.
            classes: Y.
            bias: whether the model gives its head a bias.
        """
        from flbench.models.layers import Dense

        return Dense(features, classes, bias=bias)

    def width(self, features: int) -> int:
        """Return the number of inputs D of the last layer."""
        return features

    def projection(self, features: int, bias: bool) -> nn.Module | None:
        """Return what stands between the features and the last layer, or None; its output has ``width`` elements."""
        return None

    def problem(self, features: int, classes: int) -> str | None:
        """Return why the head does not fit a network with these numbers of features and classes, or None."""
        return None
