"""The sites of a network: the places for normalizations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Shape of one sample: an image (C, H, W), features (D,), or (T, V), a sequence of T tokens of a vocabulary of V.
Shape = tuple[int, ...]


def described(shape: Shape) -> str:
    """Return what samples of this shape are, for messages."""
    match shape:
        case (features,):
            return f"features ({features},)"
        case (tokens, vocabulary):
            return f"sequences of {tokens} tokens (of {vocabulary})"
        case _:
            return "images of " + "x".join(map(str, shape))


@dataclass(frozen=True)
class Site:
    """A place for a normalization.

    Attributes:
        position: ``before`` or ``after`` an activation function (and before its pooling); ``feature``, the input of the
            head; ``logits``, its output.
        shape: shape of one sample there.
        inside: whether the activation is on the branch of a residual block, which the shortcut bypasses.
        last: whether it is the last activation of the network.
    """

    position: Literal["before", "after", "feature", "logits"]
    shape: Shape
    inside: bool = False
    last: bool = False
