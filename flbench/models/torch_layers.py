"""Torch's own layers in the form in which a network of plain torch modules can be trained as a stack of clients.

``adapt`` gives the modules of a network these classes. One client alone computes what torch computes, to the bit, but
for the masks of dropout (``masks``).

Shape suffixes: B batch, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.models import masks
from flbench.models.layers import at_least_float
from flbench.models.masks import Masked


def adapt(network: nn.Module) -> None:
    """Replace the classes of the modules that have a form here; names, tensors and hooks stay."""
    for module in network.modules():
        if (own := _FORMS.get(type(module))) is not None:
            module.__class__ = own
        if isinstance(module, Masked):
            module.mask_key = torch.zeros((), dtype=torch.int64)


class _MappedBatchNorm(_BatchNorm):
    """Batch normalization that computes each client of a mapped stack by itself.

    ``torch.func.vmap`` would fold the clients into the channels of one call of torch's kernel, and the bits of a
    client's statistics would depend on the number of clients. It has no rule for a cumulative mean (``momentum=None``).
    """

    def forward(self, input: Tensor) -> Tensor:
        if not torch._C._functorch.is_batchedtensor(input):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        x, mean, var = at_least_float(input), self.running_mean, self.running_var
        if self.training or mean is None or var is None:
            var, mean = torch.var_mean(x, (0, *range(2, x.dim())), correction=0)
            if self.training:
                self._move(mean, var, x.numel() // x.shape[1])
        shape = (1, -1, *[1] * (x.dim() - 2))
        out = (x - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        if self.affine:
            out = torch.addcmul(self.bias.view(shape), out, self.weight.view(shape))
        return out.to(input.dtype)

    @torch.no_grad()
    def _move(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics by the mean and variance over ``count`` elements of a channel."""
        if count == 1:
            raise ValueError("Expected more than 1 value per channel when training")
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        rate = (1 / self.num_batches_tracked).to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.mul_(1 - rate).add_(rate * mean)
        self.running_var.mul_(1 - rate).add_(rate * (var * (count / (count - 1))))


class BatchNorm1d(_MappedBatchNorm, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d``."""


class BatchNorm2d(_MappedBatchNorm, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d``."""


class BatchNorm3d(_MappedBatchNorm, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d``."""


#: Layers with masks alone.
DROPOUTS = (
    masks.Dropout,
    masks.Dropout1d,
    masks.Dropout2d,
    masks.Dropout3d,
    masks.AlphaDropout,
    masks.FeatureAlphaDropout,
)

#: The form of each class of torch; subclasses of other packages stay as they are.
_FORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    **{getattr(nn, one.__name__): one for one in DROPOUTS},
    nn.MultiheadAttention: masks.MultiheadAttention,
}
