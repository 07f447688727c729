"""A small network for sequences of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from flbench.models.base import Model
from flbench.models.stages import Average, Convolve, Dense, Embed, Stage
from flbench.registry import MODELS


@MODELS.register("text")
@dataclass(frozen=True)
class Text(Model):
    """An embedding of each token, one vector for the sequence, fully connected ReLU layers, and a linear head.

    The vector is the mean of the embeddings, as in fastText, or with ``kernel`` each channel's maximum over a
    convolution of that many tokens in a row and ReLU, as in Kim's CNN. A normalization has its places at the
    convolution, at the fully connected layers, at the feature and at the logits. Padding is a token like any other.

    Attributes:
        width: numbers of an embedding, and channels of the convolution.
        kernel: tokens that the convolution sees at once; without it the mean is taken.
        hidden: widths of the fully connected layers.
    """

    source = "@joulin2017fasttext; with kernel: @kim2014cnn"

    width: Annotated[int, Field(ge=1)] = 64
    kernel: Annotated[int, Field(ge=1)] | None = None
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (64,)

    def stages(self) -> tuple[Stage, ...]:
        pooled = Average() if self.kernel is None else Convolve(self.width, self.kernel)
        return Embed(self.width), pooled, *map(Dense, self.hidden)
