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
    elementwise: ClassVar[bool] = True

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
        return self._coefficient() / n * (squares.sum() - squares.diagonal().sum()) / max(1, d * (d - 1))

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        """Return it by u u^T (n, n), which has the norm of u^T u (d, d), and is smaller in most networks.

        With G = dL/du: dL/df = (G - u mean_B(G u)) / deviation, with n - 1 in place of n where that is unbiased. The
        mean over the batch of this is 0, because that of u is, so the subtraction of the mean changes nothing.
        """
        import torch

        f_NBD = batch.features_BD.movedim(-1, 0)
        n, d = f_NBD.shape[1:]
        biased = self.variant == "original"
        divisor = n if biased else n - 1
        centred_NBD = f_NBD - f_NBD.mean(1, keepdim=True)
        scale_N1D = centred_NBD.square().sum(1, keepdim=True).div_(divisor).add_(EPS).rsqrt_()
        u_NBD = centred_NBD.mul_(scale_N1D)
        into_NBD = torch.bmm(torch.bmm(u_NBD, u_NBD.mT), u_NBD)
        if biased:
            factor = 4 * self._coefficient() / (d * n) ** 2
        else:
            into_NBD.addcmul_(u_NBD, u_NBD.square().sum(1, keepdim=True), value=-1)
            factor = 4 * self._coefficient() / (n * max(d * (d - 1), 1))
        along_N1D = (into_NBD * u_NBD).sum(1, keepdim=True).div_(divisor)
        into_NBD.addcmul_(u_NBD, along_N1D, value=-1).mul_(scale_N1D.mul_(factor))
        return {"features_BD": into_NBD.movedim(0, -1)}

    def _coefficient(self) -> float:
        return 0.1 if self.variant == "code" else self.coefficient
