"""A method, a normalization and a model of another package."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods import Method
from flbench.methods.base import tmap
from flbench.models.base import Model
from flbench.models.norms import Norm
from flbench.registry import METHODS, MODELS, NORMS


@METHODS.register("signsgd")
@dataclass(frozen=True)
class SignSgd(Method):
    """Clients step along the sign of the gradient."""

    equation: ClassVar[str] = "w <- w - lr scale sign(g)"
    elementwise: ClassVar[bool] = True

    scale: Annotated[float, Field(gt=0)] = 0.1

    def direction(self, w, g, ctx):
        return tmap(lambda leaf: self.scale * leaf.sign(), g)


@NORMS.register("maxnorm")
@dataclass(frozen=True)
class MaxNorm(Norm):
    """Divide every sample's activations by their largest absolute value."""

    def layer(self, site):
        from torch import nn

        class Largest(nn.Module):
            def forward(self, x):
                flat = x.flatten(1)
                return (flat / flat.abs().amax(1, keepdim=True).clamp_min(1e-5)).view_as(x)

        return Largest() if site.position == "after" else None


@MODELS.register("attention")
@dataclass(frozen=True)
class Attention(Model):
    """Self-attention over the rows of an image: a model that builds its own torch modules and ignores norms."""

    heads: Annotated[int, Field(ge=1)] = 2

    def build(self, image, classes, norm, bias):
        import torch
        from torch import nn

        heads = self.heads

        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.places = nn.Parameter(torch.randn(image[1], image[2]) / 10)
                self.attention = nn.MultiheadAttention(image[2], heads, batch_first=True)
                self.head = nn.Linear(image[2], classes)

            def forward(self, images):
                rows = images.mean(1) + self.places
                features = self.attention(rows, rows, rows, need_weights=False)[0].mean(1)
                return features, self.head(features)

        return Network()
