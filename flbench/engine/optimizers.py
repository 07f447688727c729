"""The local optimizer of a client, or of a stack of clients.

Shape suffixes: N clients (absent for one).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.methods.base import Tree


@dataclass(frozen=True)
class Sgd:
    """Plain SGD as ``torch.optim.SGD`` defines it; the learning rate is constant."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


def descend(weights: list[Tensor], direction: list[Tensor], lr: float | Tensor) -> None:
    """Subtract the rate, common or of each client (N,), times the direction, in place; on a CPU with the same bits."""
    if isinstance(lr, Tensor):
        rates = [lr.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1)) for leaf in weights]
        torch._foreach_addcmul_(weights, direction, rates, value=-1)
    else:
        torch._foreach_add_(weights, direction, alpha=-lr)


def where(training: Tensor | None, new: Tree, old: Tree | None = None) -> Tree:
    """``new`` for the clients that take this step, ``old`` (or zero) for those that have taken all of theirs."""
    if training is None:
        return new
    return {
        name: torch.where(training.view(-1, *[1] * (leaf.dim() - 1)), leaf, old[name] if old else 0)
        for name, leaf in new.items()
    }
