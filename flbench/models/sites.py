"""The places in a network where a normalization may sit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Shape of one sample: (C, H, W) or (D,).
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A place where a normalization may sit.

    Attributes:
        position: ``before`` or ``after`` an activation function (after it, but before the pooling); ``feature``, the
            input of the head; ``logits``, its output.
        shape: shape of one sample there: (C, H, W) or (D,).
        inside: whether the activation is within a residual block, so that a path leads around it.
        last: whether it is the last activation of the network.
    """

    position: Literal["before", "after", "feature", "logits"]
    shape: Shape
    inside: bool = False
    last: bool = False
