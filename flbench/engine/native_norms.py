"""Which normalizations are compiled, of neurons (``native_stack``) and of pixels (``convolution_stack``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flbench.methods.base import Tree
from flbench.models.norm_layers import Factor, GroupNorm, LayerNorm, MeanShift, RmsNorm, ScaleNorm
from flbench.native.mlp_layout import Kind


@dataclass(kw_only=True)
class NativeNorm:
    """A normalization.

    Attributes:
        gains: whether it has them, and ``bias`` its shifts.
        groups: of channels or neurons, each with statistics of its own.
        centred: whether their mean is subtracted.
        number: ``eps``, or the factor's name among the buffers.
    """

    path: str
    kind: Kind
    gains: bool = False
    bias: bool = False
    groups: int = 1
    centred: bool = False
    number: float | str = 0.0

    @classmethod
    def of(cls, path: str, module: nn.Module) -> NativeNorm | None:
        """Return that of a layer; None where it is not compiled. A subclass of a layer may compute something else."""
        match module:
            case LayerNorm() | GroupNorm() if type(module) in (LayerNorm, GroupNorm):
                affine, groups = module.weight is not None, module.num_groups if isinstance(module, GroupNorm) else 1
                known: dict[str, Any] = {"gains": affine, "bias": affine, "groups": groups, "centred": True}
                return NativeNorm(path=path, kind=Kind.VARIANCE, number=module.eps, **known)
            case RmsNorm() if type(module) is RmsNorm:
                return NativeNorm(path=path, kind=Kind.VARIANCE, gains=True, number=module.eps)
            case ScaleNorm() if type(module) is ScaleNorm:
                return NativeNorm(path=path, kind=Kind.LENGTH, number=module.eps)
            case MeanShift() if type(module) is MeanShift:
                return NativeNorm(path=path, kind=Kind.CENTRED, centred=True, number=1.0)
            case Factor() if type(module) is Factor:
                return NativeNorm(path=path, kind=Kind.FACTOR, number=f"{path}.factor")
        return None

    def number_in(self, buffers: Tree) -> Tensor:
        """Return ``eps``, or the factor of each client (N,)."""
        return buffers[self.number].reshape(-1) if isinstance(self.number, str) else torch.tensor(self.number)
