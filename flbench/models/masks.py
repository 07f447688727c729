"""Dropout whose masks are functions of a key, so that every executor, device and resumed run has the same masks.

The engine puts a key (int64, 0-d) into each layer at every local step: of the run's seed, the client, the round, the
step (``flbench.streams``) and the layer's name. A mask is what ``flbench.tensor_streams`` generates from it.

Shape suffixes: B batch, L target and S source positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flbench.codes import code
from flbench.tensor_streams import generated, mixed, shifted

#: Of SELU, with which alpha dropout keeps mean and variance.
_ALPHA = 1.7580993408473766


class Masked(nn.Module):
    """Base of the layers with masks: ``mask_key`` is the key of the next mask, and one of several calls of a step."""

    mask_key: Tensor

    def keeps(self, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """Return which elements are kept, each with probability 1 - p."""
        key = self.mask_key.to(device)
        self.mask_key = mixed(key + 1)
        bits = generated(key, torch.Size(shape).numel())
        return (shifted(bits, 11) >= int(p * 2**53)).view(shape)


def mask_keys(network: nn.Module) -> dict[str, int]:
    """Return, for each layer with masks, the name of its key, and a number of that name (int64)."""
    names = [f"{path}.mask_key" if path else "mask_key" for path, one in network.named_modules() if is_masked(one)]
    return {name: code(name) - 2**63 for name in names}


def is_masked(module: nn.Module) -> bool:
    """Return whether a module draws masks in training."""
    if isinstance(module, nn.MultiheadAttention):
        return isinstance(module, Masked) and module.dropout > 0
    return isinstance(module, Masked)


class _Dropout(Masked):
    """``torch.nn.Dropout`` and its variants: they differ in what they drop, and in what replaces it."""

    p: float
    inplace: bool

    def mask_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of the mask, which broadcasts."""
        return tuple(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = self.keeps(self.mask_shape(x), self.p, x.device).to(x.dtype)
        return self.dropped(x, kept)

    def dropped(self, x: Tensor, kept: Tensor) -> Tensor:
        """Zero what is not kept, and scale the rest to the same mean."""
        factor = kept / (1 - self.p) if self.p < 1 else kept
        out: Tensor = x.mul_(factor) if self.inplace else x * factor
        return out


class _Features(_Dropout):
    """Whole channels (B, C, ...) are dropped; an input without batch has ``unbatched`` axes."""

    unbatched = 0

    def mask_shape(self, x: Tensor) -> tuple[int, ...]:
        axes = 1 if x.dim() == self.unbatched else 2
        return (*x.shape[:axes], *[1] * (x.dim() - axes))


class SampleDropout(_Dropout, nn.Dropout):
    """Drops whole samples (B, ...): stochastic depth at the end of a residual branch (Huang et al. 2016)."""

    def mask_shape(self, x: Tensor) -> tuple[int, ...]:
        return (len(x), *[1] * (x.dim() - 1))


class _Alpha(_Dropout):
    """What is dropped becomes SELU's least value, and an affine map keeps mean and variance."""

    def dropped(self, x: Tensor, kept: Tensor) -> Tensor:
        if self.p == 1:
            return 0 * x
        scale = ((_ALPHA**2 * self.p + 1) * (1 - self.p)) ** -0.5
        shift = (kept - 1) * (_ALPHA * scale) + _ALPHA * scale * self.p
        out: Tensor = x * (kept * scale) + shift
        return out


class Dropout(_Dropout, nn.Dropout):
    """``torch.nn.Dropout``."""


class Dropout1d(_Features, nn.Dropout1d):
    """``torch.nn.Dropout1d``."""

    unbatched = 2


class Dropout2d(_Features, nn.Dropout2d):
    """``torch.nn.Dropout2d``."""


class Dropout3d(_Features, nn.Dropout3d):
    """``torch.nn.Dropout3d``."""

    unbatched = 4


class AlphaDropout(_Alpha, nn.AlphaDropout):
    """``torch.nn.AlphaDropout``."""


class FeatureAlphaDropout(_Alpha, _Features, nn.FeatureAlphaDropout):
    """``torch.nn.FeatureAlphaDropout``."""


class MultiheadAttention(Masked, nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention``."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend. In training with dropout, torch computes the weights without dropout; the mask is applied here."""
        options: dict[str, Any] = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "is_causal": is_causal}
        if not self.training or self.dropout == 0:
            options |= {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
            plain: tuple[Tensor, Tensor | None] = super().forward(query, key, value, **options)
            return plain
        dropout, self.dropout = self.dropout, 0.0
        try:
            options |= {"need_weights": True, "average_attn_weights": False}
            plain_weights: Any = super().forward(query, key, value, **options)[1]
        finally:
            self.dropout = dropout
        kept = self.keeps(tuple(plain_weights.shape), dropout, plain_weights.device)
        weights: Tensor = plain_weights * kept / (1 - dropout)
        heads = weights @ self._values(value)  # (B, heads, L, d), or without B
        out = self.out_proj(heads.transpose(-3, -2).flatten(-2))
        if value.dim() == 3 and not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _values(self, value: Tensor) -> Tensor:
        """The values of every head, (B, heads, S, d) or (heads, S, d), as torch's attention has them."""
        if value.dim() == 3 and not self.batch_first:
            value = value.transpose(0, 1)
        packed = self.in_proj_weight
        weight = self.v_proj_weight if packed is None else packed[2 * self.embed_dim :]
        bias = None if self.in_proj_bias is None else self.in_proj_bias[2 * self.embed_dim :]
        v_BSD = nn.functional.linear(value, weight, bias)
        if self.bias_v is not None:
            v_BSD = torch.cat([v_BSD, self.bias_v.view(-1).expand(*v_BSD.shape[:-2], 1, -1)], -2)
        if self.add_zero_attn:
            v_BSD = torch.cat([v_BSD, torch.zeros_like(v_BSD[..., :1, :])], -2)
        values: Tensor = v_BSD.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
        return values
