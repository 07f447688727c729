"""Which normalizations are compiled, of neurons (``native_stack``) and of pixels (``convolution_stack``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flbench.methods.base import Tree
from flbench.models.batch_norm_layers import LocalStatisticsBatchNorm
from flbench.models.norm_layers import BatchNorm, Factor, GroupNorm, LayerNorm, MeanShift, RmsNorm, ScaleNorm
from flbench.native.mlp_layout import Kind


@dataclass(kw_only=True)
class NativeNorm:
    """A normalization.

    Attributes:
        gains: whether it has them, and ``bias`` its shifts.
        groups: of channels or neurons, each with statistics of its own.
        centred: whether their mean is subtracted.
        number: ``eps``, or the factor's name among the buffers.
        momentum: by which running statistics move, 0-d; None: there are none.
    """

    path: str
    kind: Kind
    gains: bool = False
    bias: bool = False
    groups: int = 1
    centred: bool = False
    number: float | str = 0.0
    momentum: Tensor | None = None

    @classmethod
    def of(cls, path: str, module: nn.Module) -> NativeNorm | None:
        """Return that of a layer; None where it is not compiled. A subclass of a layer may compute something else."""
        match module:
            case LayerNorm() | GroupNorm() if type(module) in (LayerNorm, GroupNorm):
                affine, groups = module.weight is not None, module.num_groups if isinstance(module, GroupNorm) else 1
                known: dict[str, Any] = {"gains": affine, "bias": affine, "groups": groups, "centred": True}
                return NativeNorm(path=path, kind=Kind.VARIANCE, number=module.eps, **known)
            case BatchNorm() if type(module) in (BatchNorm, LocalStatisticsBatchNorm):
                affine, groups = module.weight is not None, module.running_mean.shape[-1]
                known = {"gains": affine, "bias": affine, "groups": groups, "centred": True}
                momentum = torch.tensor(module.momentum)
                return NativeNorm(path=path, kind=Kind.BATCH, number=module.eps, momentum=momentum, **known)
            case RmsNorm() if type(module) is RmsNorm:
                return NativeNorm(path=path, kind=Kind.VARIANCE, gains=True, number=module.eps)
            case ScaleNorm() if type(module) is ScaleNorm:
                return NativeNorm(path=path, kind=Kind.LENGTH, number=module.eps)
            case MeanShift() if type(module) is MeanShift:
                return NativeNorm(path=path, kind=Kind.CENTRED, centred=True, number=1.0)
            case Factor() if type(module) is Factor:
                return NativeNorm(path=path, kind=Kind.FACTOR, number=f"{path}.factor")
        return None

    def tensors(self, buffers: Tree, numbers: Tensor, *, training: bool) -> Tree:
        """Return what compiled code reads of the buffers by the names of its parts.

        Args:
            buffers: in training the running statistics are moved in place.
            numbers: memory (N,) for ``eps`` or the factor of each client.
            training: whether batches are normalized by their own statistics.
        """
        given = buffers[self.number].reshape(-1) if isinstance(self.number, str) else self.number
        found = {"NUMBER": numbers.copy_(torch.as_tensor(given))}
        if self.momentum is not None:
            for name in ("running_mean", "running_var"):
                leaf = buffers[f"{self.path}.{name}"]
                assert leaf.is_contiguous() or not training
                found[name.upper()] = leaf.contiguous()
            found |= {"MOMENTUM": self.momentum} if training else {}
        return found
