"""A method and a normalization from outside of flbench."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods import Method
from flbench.methods.base import tmap
from flbench.models.norms import Norm
from flbench.registry import METHODS, NORMS


@METHODS.register("signsgd")
@dataclass(frozen=True)
class SignSgd(Method):
    """Clients step along the sign of the gradient."""

    equation: ClassVar[str] = "w <- w - lr scale sign(g)"
    elementwise: ClassVar[bool] = True

    scale: Annotated[float, Field(gt=0)] = 0.1

    def direction(self, g, ctx):
        return tmap(lambda leaf: self.scale * leaf.sign(), g)


@NORMS.register("maxnorm")
@dataclass(frozen=True)
class MaxNorm(Norm):
    """Every activation over its largest absolute value."""

    def layer(self, site):
        from torch import nn

        class Largest(nn.Module):
            def forward(self, x):
                flat = x.flatten(1)
                return (flat / flat.abs().amax(1, keepdim=True).clamp_min(1e-5)).view_as(x)

        return Largest() if site.position == "after" else None
