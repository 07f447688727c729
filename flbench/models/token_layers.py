"""Torch layers for sequences of tokens, of one client or of a stack of clients.

Shape suffixes: N clients (absent, or the leading axis of input and parameters alike), B batch, T tokens, V vocabulary,
D width of an embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.models.layers import StackableLayer
from flbench.models.sites import Shape


class Embedding(nn.Embedding, StackableLayer):
    """tokens_BT to (B, D, 1, T): each token's row of the weight (V, D), as an image of one row.

    It also takes distributions over the tokens (B, T, V), such as one-hot vectors, in which gradients exist.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Look the tokens up in the weight (V, D), or in (N, V, D) client by client."""
        weight = self.weight
        if tokens.is_floating_point():
            vectors = tokens @ (weight if weight.dim() == 2 else weight.unsqueeze(1))
        elif weight.dim() == 2:
            vectors = F.embedding(tokens, weight)
        else:  # one table of all clients' rows
            first = torch.arange(len(weight), device=tokens.device) * weight.shape[1]
            vectors = F.embedding(tokens + first[:, None, None], weight.flatten(0, 1))
        return vectors.mT.unsqueeze(-2)


class GlobalMax(StackableLayer):
    """Each channel's maximum over its places; equal maxima share the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C, H, W) to (..., C)."""
        return x.amax((-2, -1))


def blank_batch(samples: int, shape: Shape, like: Tensor) -> Tensor:
    """Return zeros as a network's input: (samples, *shape), or for a shape (T, V) tokens (samples, T)."""
    if len(shape) == 2:
        return torch.zeros(samples, shape[0], dtype=torch.int32, device=like.device)
    return torch.zeros(samples, *shape, dtype=like.dtype, device=like.device)
