"""Which parameters move in a local step, and how far: the factors of the hook ``rates``.

A parameter whose factor is 0 is treated as ``torch.optim`` treats one whose gradient is None: it does not move, its
gradient counts in no norm, and its part of the optimizer's state stays as it is.

Shape suffixes: N clients (absent for one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.methods.base import Tree

#: The factor of a parameter: one number for all clients, 0-d, or (N,).
Factor = float | Tensor


@dataclass(frozen=True)
class Phase:
    """The factors of one local step by the name of the parameter."""

    factors: Mapping[str, Factor]

    def of_gradient(self, grads: Tree) -> Tree:
        """Return the gradient with zeros where a parameter does not move."""
        return {name: _moving(self.factors[name], leaf) for name, leaf in grads.items()}

    def of_state(self, after: Tree, before: Tree) -> Tree:
        """Return the optimizer's next state; ``before`` may be empty for zero."""
        factors = {name: self.factors[name.rpartition("/")[2]] for name in after}  # Adam's are moment/parameter
        return {name: _moving(factors[name], leaf, before.get(name)) for name, leaf in after.items()}

    def of_step(self, steps: Tree) -> Tree:
        """Return what is subtracted from the weights at the round's rate."""
        return {name: _scaled(self.factors[name], leaf) for name, leaf in steps.items()}

    def counted(self, taken: int | Tree, like: Tree) -> int | Tree:
        """Return how many steps each parameter has taken with this one; ``like`` has a leaf for each."""
        counts = {name: leaf.new_zeros(()) for name, leaf in like.items()} if isinstance(taken, int) else taken
        return {name: count + _moving(self.factors[name], torch.ones_like(count)) for name, count in counts.items()}


def aligned(numbers: Tensor, leaf: Tensor) -> Tensor:
    """Return numbers, 0-d or (N,), in a shape that combines with a leaf, whose first axis are a stack's clients."""
    return numbers.view((*numbers.shape, *[1] * (leaf.dim() - numbers.dim())))


def _scaled(factor: Factor, leaf: Tensor) -> Tensor:
    """The leaf times the factor, and 0 where the factor is, even if the leaf is not finite."""
    if isinstance(factor, Tensor):
        return _moving(factor, leaf * aligned(factor, leaf).to(leaf.dtype))
    return leaf if factor == 1 else _moving(factor, leaf * factor)


def _moving(factor: Factor, new: Tensor, old: Tensor | None = None) -> Tensor:
    """``new`` where the factor is not 0, else ``old`` (or zero)."""
    if isinstance(factor, Tensor):
        return torch.where(aligned(factor, new) != 0, new, 0 if old is None else old)
    return new if factor else torch.zeros_like(new) if old is None else old
