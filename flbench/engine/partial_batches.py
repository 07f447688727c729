"""Which runs with partial batches can be trained as stacks."""

from __future__ import annotations

import torch
from torch import nn

from flbench.methods.base import Method, overrides
from flbench.models.masks import mask_keys
from flbench.models.sites import Shape


def stacks_partial_batches(method: Method, network: nn.Module, image: Shape) -> bool:
    """Return whether clients whose batches have unequal sizes can be a stack, with samples that do not count.

    Such samples must not influence the others. They would in the method's own terms of the loss, which see whole
    batches, and in a network with batch normalization. Two tests detect the latter: one sample's logits have a gradient
    with respect to other samples, or training changes buffers. The network is in training mode afterwards, and its
    buffers are as before.
    """
    if mask_keys(network):  # masks of a batch that is filled up are other ones, unless samples come first everywhere
        return False
    if any(overrides(type(method), hook) for hook in ("logits", "loss", "penalty")):
        return False
    buffers = {name: leaf.clone() for name, leaf in network.named_buffers()}
    like = next(network.parameters())
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(4, *image, generator=generator, dtype=torch.float64).to(like).requires_grad_()
    network.train()
    logits = network(pixels)[1][0]
    (gradient,) = torch.autograd.grad(logits @ torch.linspace(-1, 2, len(logits)).to(like), pixels)
    moved = not all(torch.equal(leaf, buffers[name]) for name, leaf in network.named_buffers())
    with torch.no_grad():
        for name, leaf in network.named_buffers():
            leaf.copy_(buffers[name])
    return not moved and not gradient[1:].any()
