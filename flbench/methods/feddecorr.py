"""FedDecorr."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Batch, Context, Method, Tree, Variant
from flbench.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

#: Keeps the deviation of a dead feature from 0; added to the variance, as in its authors' code.
EPS = 1e-8


@METHODS.register("feddecorr")
@dataclass(frozen=True)
class FedDecorr(Method):
    """FedDecorr (Shi et al. 2023): penalises correlations between the features (inputs of the head) of a batch.

    With u the features standardised over the batch of n samples, each of the d columns to mean 0 and deviation 1:

    - ``original``, the equation of its paper: coefficient / d^2 ||u^T u / n||_F^2 with biased deviations;
    - ``text``, the label-skew paper's text, which uses FedDecorr's code: coefficient / n times the mean square of the
      off-diagonal entries of u^T u (not divided by n) with unbiased deviations, about n times the original's;
    - ``code``, the label-skew paper's code: as ``text``, but with the fixed coefficient 0.1.

    The coefficient is the label-skew paper's for the original too (the scripts of FedDecorr's authors have 0.05 and
    0.1, on the scale of ``text``). 0 is FedAvg.
    """

    smallest_batch: ClassVar[int] = 2
    #: As a tensor of float32 it would be rounded before it is divided, as a Python number it is rounded after that.
    static: ClassVar[frozenset[str]] = frozenset({"coefficient"})
    equation: ClassVar[str] = "local loss: CE(z, y) + coefficient/d^2 ||K||_F^2, K the correlations of the features"
    source: ClassVar[str] = "@shi2023feddecorr"

    coefficient: Annotated[float, Field(ge=0)] = 0.5
    variant: Variant = "original"

    def __post_init__(self) -> None:
        if self.variant == "code" and self.coefficient != type(self).coefficient:
            raise ValueError("variant code has the fixed coefficient 0.1; use variant text for another one")

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        n, d = batch.features_BD.shape
        centred = batch.features_BD - batch.features_BD.mean(0)
        if self.variant == "original":
            u = centred / ((centred**2).mean(0) + EPS).sqrt()
            return self.coefficient / d**2 * ((u.T @ u / n) ** 2).sum()
        u = centred / ((centred**2).sum(0) / (n - 1) + EPS).sqrt()
        squares = (u.T @ u) ** 2
        coefficient = 0.1 if self.variant == "code" else self.coefficient
        return coefficient / n * (squares.sum() - squares.diagonal().sum()) / max(1, d * (d - 1))
