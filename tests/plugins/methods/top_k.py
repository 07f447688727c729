"""Sparse changes with error feedback (Stich et al. 2018, Algorithm 1)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Method, tmap
from flbench.registry import METHODS


@METHODS.register("top-k")
@dataclass(frozen=True)
class TopK(Method):
    """Each client sends the largest entries of its change, and adds what it did not send to the next change."""

    equation: ClassVar[str] = "d_k = top_k(w_k - x + e_k), e_k <- w_k - x + e_k - d_k"
    static: ClassVar[frozenset[str]] = frozenset({"share"})

    share: Annotated[float, Field(gt=0, le=1)] = 0.05

    def entries(self, tree):
        """Return k."""
        return max(1, int(self.share * sum(leaf.numel() for leaf in tree.values())))

    def init_client(self, x, buffers):
        return tmap(lambda leaf: 0 * leaf, x)

    def upload(self, change, ctx):
        import torch

        whole = tmap(lambda leaf, rest: leaf + rest, change, ctx.client)
        flat = torch.cat([leaf.flatten() for leaf in whole.values()])
        largest = flat.abs().topk(self.entries(whole)).indices
        kept = torch.zeros_like(flat).scatter(0, largest, flat[largest])
        parts = kept.split([leaf.numel() for leaf in whole.values()])
        sent = {name: part.view(leaf.shape) for (name, leaf), part in zip(whole.items(), parts, strict=True)}
        return sent, tmap(lambda leaf, part: leaf - part, whole, sent)

    def upload_bytes(self, x):
        """Return the bytes of k values and k indices of 32 bits."""
        return self.entries(x) * (next(iter(x.values())).element_size() + 4)
