"""Counting floating-point operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.models.sites import Shape
from flbench.models.token_layers import blank_batch


def sample_flops(network: nn.Module, image: Shape, *, backward: bool) -> float:
    """Return the floating-point operations of matrix products and convolutions for one sample.

    Args:
        network: a module that returns (features, logits); it is put into evaluation mode.
        image: shape of a sample, as (C, H, W).
        backward: whether to count a backward pass too. It is a real one, so the gradient of the images, which training
            does not compute, is left out.
    """
    samples = 2  # counted on a batch, as training computes
    counter = _Counter()
    network.eval()
    with counter, torch.set_grad_enabled(backward):
        logits = network(blank_batch(samples, image, next(network.parameters())))[1]
        if backward:
            logits.sum().backward()
    network.zero_grad()
    return counter.total / samples


class _Counter(TorchDispatchMode):
    """Add the operations by torch's formulas, as ``torch.utils.flop_counter.FlopCounterMode`` does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        from torch.utils.flop_counter import flop_registry  # it imports triton, in 0.2 s

        self.total, self._formulas = 0, flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: to skip it, torch imports it, for seconds in every worker. Nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = self._formulas.get(func._overloadpacket)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if parts is NotImplemented else parts
        out = func(*args, **kwargs)
        self.total += formula(*args, **kwargs, out_val=out)
        return out
