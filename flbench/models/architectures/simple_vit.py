"""A small vision transformer (Beyer et al. 2022, arXiv 2205.01580): a model that builds its own torch modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flbench.models.base import Model, unfit
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.registry import MODELS

if TYPE_CHECKING:
    from torch import nn


@MODELS.register("simple-vit")
@dataclass(frozen=True)
class SimpleViT(Model):
    """Patches with sine-cosine positions, pre-norm transformer blocks, LN, the mean over the patches, a linear head.

    As in the authors' code (google-research/big_vision), LN stands before the mean; in lucidrains/vit-pytorch it
    follows the mean. Dense layers inside the blocks start from Xavier's uniform distribution, as in the authors' code;
    patch embedding and head have torch's initial weights (theirs: truncated normal and zero).

    Attributes:
        norms: what the blocks normalize with. ``own``: LN (eps 1e-6), as in the authors' code; ``norm`` only adds a
            normalization at the feature or at the logits. ``axis``: ``norm`` takes the place of every LN, over the
            elements of each token (``ln``, ``rms``, ``dyt``), so that ``none`` leaves none.
        patch: side of a square patch in pixels; it divides both sides of the images.
        width: elements of a patch's embedding and of the feature, a multiple of 4 and of ``heads``, at least 8.
        depth: number of blocks.
        heads: attention heads of a block.
        mlp_ratio: width of a block's hidden layer over ``width``.
    """

    source = "@beyer2022vit"
    patch: Annotated[int, Field(ge=1)] = 4
    width: Annotated[int, Field(ge=8, multiple_of=4)] = 64
    depth: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    mlp_ratio: Annotated[int, Field(ge=1)] = 2
    norms: Literal["own", "axis"] = "own"

    def initialized_by(self) -> Literal["layers", "build"]:
        return "layers"

    def sites(self, image: Shape) -> Iterator[Site]:
        """Those inside the blocks, if they follow the axis, and the feature."""
        count = 2 * self.depth + 1 if self.norms == "axis" else 0
        for number in range(1, count + 1):
            yield Site("before", (self.width,), last=number == count)
            yield Site("after", (self.width,), last=number == count)
        yield Site("feature", (self.width,))

    def problem(self, image: Shape) -> str | None:
        if len(image) != 3:
            return unfit(image)
        if self.width % self.heads:
            return f"heads must divide width, got {self.heads} heads and width {self.width}"
        if any(side % self.patch for side in image[1:]):
            return f"images of {image[1]}x{image[2]} pixels cannot be cut into patches of {self.patch}x{self.patch}"
        return None

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        from flbench.models.transformer import Transformer

        fields = {name: value for name, value in asdict(self).items() if name != "norms"}
        return Transformer(image, classes, norm, bias=bias, inside=self.norms == "axis", **fields)
