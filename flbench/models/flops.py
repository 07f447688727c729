"""Counting floating-point operations."""

from __future__ import annotations

import torch
from torch import nn


def sample_flops(network: nn.Module, image: tuple[int, int, int], *, backward: bool) -> float:
    """Return the floating-point operations of matrix products and convolutions for one sample.

    Args:
        network: a module that returns (features, logits); it is put into evaluation mode.
        image: (C, H, W).
        backward: whether to count a backward pass too. It is a real one, so the gradient of the images, which training
            does not compute, is left out.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, in 0.2 s

    samples = 2  # counted on a batch, as training computes
    counter = FlopCounterMode(display=False)
    network.eval()
    with counter, torch.set_grad_enabled(backward):
        logits = network(torch.zeros(samples, *image, dtype=next(network.parameters()).dtype))[1]
        if backward:
            logits.sum().backward()
    network.zero_grad()
    return counter.get_total_flops() / samples
