"""The torch modules of ``simple-vit``. They are plain modules; a stack of clients maps them with ``torch.func.vmap``.

Shape suffixes: B batch, C channels, H, W pixels, P patches, D width, A attention heads, d width of a head, Y classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flbench.models.layers import at_least_float
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site

#: Of every LN, as in the authors' code.
EPS = 1e-6


class Transformer(nn.Module):
    """images_BCHW to (features_BD, logits_BY).

    Args:
        image: (C, H, W).
        classes: outputs of the head.
        norm: the normalization at the feature and at the logits, and inside if ``inside``.
        bias: whether the patch embedding, the dense layers and the head have a bias; LN always has one.
        inside: whether ``norm`` takes the place of LN in the blocks and after them.
        patch, width, depth, heads, mlp_ratio: fields of ``SimpleViT``.
    """

    def __init__(
        self,
        image: Shape,
        classes: int,
        norm: Norm,
        *,
        bias: bool,
        inside: bool,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: int,
    ) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(image[0], width, patch, patch, bias=bias)
        layer = partial(token_norm, norm if inside else None, width)
        self.blocks = nn.Sequential(*[Block(width, heads, width * mlp_ratio, bias, layer) for _ in range(depth)])
        self.norm = layer()
        self.feature = norm.layer(Site("feature", (width,))) or nn.Identity()
        self.head = nn.Linear(width, classes, bias=bias)
        self.logits = norm.layer(Site("logits", (classes,))) or nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x_BDHW = self.embedding(images)
        # Computed here: as buffers the positions would be averaged over the clients in every round.
        x_BPD = x_BDHW.flatten(2).mT + sincos_positions(x_BDHW)
        features = self.feature(self.norm(self.blocks(x_BPD)).mean(1))
        return features, self.logits(self.head(features))


class Block(nn.Module):
    """x + attention(LN x), then x + MLP(LN x), both of width D; ``norm`` makes LN, or what takes its place."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.before_attention = norm()
        self.attention = Attention(width, heads, bias)
        self.before_mlp = norm()
        self.mlp = nn.Sequential(
            XavierDense(width, hidden, bias=bias), nn.GELU(approximate="tanh"), XavierDense(hidden, width, bias=bias)
        )

    def forward(self, x_BPD: Tensor) -> Tensor:
        x_BPD = x_BPD + self.attention(self.before_attention(x_BPD))
        out: Tensor = x_BPD + self.mlp(self.before_mlp(x_BPD))
        return out


def token_norm(norm: Norm | None, width: int) -> nn.Module:
    """Return the normalization of each token (D,) inside a transformer; None: LN, as in the authors' code."""
    if norm is None:
        return nn.LayerNorm(width, eps=EPS)
    layer = norm.layer(Site("after", (width,))) or norm.layer(Site("before", (width,)))
    return nn.Identity() if layer is None else per_token(layer)


def per_token(layer: nn.Module) -> nn.Module:
    """Return a layer for (M, D) as one over each token (..., D); layer normalization is that by itself."""
    return layer if isinstance(layer, nn.LayerNorm) else PerToken(layer)


class PerToken(nn.Module):
    """A layer for (M, D), over all tokens (..., D)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(0, -2)).view(x.shape)
        return out


class Attention(nn.Module):
    """Multi-head self-attention: softmax(q k^T / sqrt(d)) v for each head, then a dense layer."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query = XavierDense(width, width, bias=bias)
        self.key = XavierDense(width, width, bias=bias)
        self.value = XavierDense(width, width, bias=bias)
        self.out = XavierDense(width, width, bias=bias)

    def forward(self, x_BPD: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        q_BAPd, k_BAPd, v_BAPd = (layer(x_BPD).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in layers)
        weights_BAPP = (q_BAPd @ k_BAPd.mT * q_BAPd.shape[-1] ** -0.5).softmax(-1)
        out: Tensor = self.out((weights_BAPP @ v_BAPd).transpose(-2, -3).flatten(-2))
        return out


class XavierDense(nn.Linear):
    """A dense layer with Xavier's uniform initial weights and zero bias."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def sincos_positions(x_BDHW: Tensor) -> Tensor:
    """Return the positions (P, D) of a grid's patches, row by row: sin and cos of x, then of y, a quarter of D each.

    The frequencies fall geometrically from 1 to 1/10,000 (MoCo v3, as in the authors' code).
    """
    width, rows, columns = x_BDHW.shape[1:]
    kind: dict[str, Any] = {"device": x_BDHW.device, "dtype": at_least_float(x_BDHW).dtype}
    frequencies = 10_000.0 ** -torch.linspace(0, 1, width // 4, **kind)
    y, x = torch.meshgrid(torch.arange(rows, **kind), torch.arange(columns, **kind), indexing="ij")
    at_x, at_y = (place.flatten()[:, None] * frequencies for place in (x, y))
    return torch.cat([at_x.sin(), at_x.cos(), at_y.sin(), at_y.cos()], dim=1)
