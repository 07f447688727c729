"""Last layers with unit rows, for one client's tensors or a stack of clients' (see ``layers``).

Shape suffixes: B batch, D features, Y classes. Norms are computed in float32 at least.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.models.layers import StackableLayer, at_least_float, product
from flbench.models.norms.base import EPS


class _Scaled(StackableLayer):
    """Base of the heads whose logits have a common factor: a number, or a parameter of one element."""

    weight: Tensor

    def __init__(self, scale: float, learned: bool) -> None:
        super().__init__()
        self.initial_scale = scale
        self.scale = nn.Parameter(torch.empty(1)) if learned else None

    def reset_parameters(self) -> None:
        if self.scale is not None:
            nn.init.constant_(self.scale, self.initial_scale)

    def scaled(self, logits: Tensor) -> Tensor:
        """Multiply by the scale, common or of each client."""
        return logits * (self.initial_scale if self.scale is None else self.scale.unsqueeze(-1))


class CosineHead(_Scaled):
    """s times the cosine between f_BD and every row of a trained weight (Y, D)."""

    def __init__(self, features: int, classes: int, scale: float, *, learned: bool) -> None:
        super().__init__(scale, learned)
        self.weight = nn.Parameter(torch.empty(classes, features))

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(product(_unit(x), _unit(self.weight)))


class FixedHead(_Scaled):
    """s times the product of f_BD, perhaps divided by its norm, with rows that are never trained.

    Args:
        features, classes: D and Y, with Y <= D.
        scale: s, or its initial value.
        simplex: whether the rows are a simplex equiangular tight frame of norm 1; if not, they are orthonormal.
        unit_features: whether the features are divided by their norm.
        learned: whether the scale is a parameter.
    """

    constants: ClassVar[frozenset[str]] = frozenset({"weight"})

    def __init__(
        self, features: int, classes: int, scale: float, *, simplex: bool, unit_features: bool, learned: bool = False
    ) -> None:
        super().__init__(scale, learned)
        self.simplex, self.unit_features = simplex, unit_features
        self.register_buffer("weight", torch.empty(classes, features))

    def reset_parameters(self) -> None:
        """Orthonormal rows of uniform distribution (Haar), or a frame in their span, and the initial scale."""
        classes, features = self.weight.shape
        basis_DY, upper_YY = torch.linalg.qr(torch.randn(features, classes, dtype=torch.float64))
        rows_YD = (basis_DY * upper_YY.diagonal().sign()).T
        if self.simplex:
            rows_YD = math.sqrt(classes / (classes - 1)) * (rows_YD - rows_YD.mean(0))
        self.weight.copy_(rows_YD)
        super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(product(_unit(x) if self.unit_features else x, self.weight))


def _unit(x: Tensor) -> Tensor:
    """The rows of the last axis, divided by their norm or by 1e-5 if that is larger."""
    return F.normalize(at_least_float(x), dim=-1, eps=EPS)
