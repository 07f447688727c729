"""The local optimizer of a client, or of a stack of clients.

Shape suffixes: N clients (absent for one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flbench.config.schedules import CONSTANT, rate_factor
from flbench.engine.phases import aligned
from flbench.methods.base import Tree, tmap

#: Decay rates and epsilon of Adam, the defaults of torch.
BETAS, EPS = (0.9, 0.999), 1e-8

#: Decay rate and name of each of Adam's moments.
_MOMENTS = tuple(zip(BETAS, ("first", "second"), strict=True))

#: Least norm of a unit's weights in adaptive gradient clipping: zero weights could not move otherwise.
SHORTEST_UNIT = 1e-3


@dataclass(frozen=True)
class Sgd:
    """SGD as ``torch.optim.SGD`` defines it.

    A step clips the gradient, as ``torch.nn.utils.clip_grad_norm_`` does before ``step``, or unit by unit, adds weight
    decay, applies the method's ``direction``, then momentum.

    Attributes:
        lr: learning rate of the first round; ``schedule``: how it changes from round to round.
        clip_norm: largest norm of a client's gradient over all parameters; None: not clipped.
        agc: largest norm of a unit's gradient over that of its weights (``unitwise_clipped``); None: not clipped.
        kept: whether a client continues with the state of the last round in which it took part; otherwise every round
            starts with none.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None
    agc: float | None = None
    schedule: str = CONSTANT
    kept: bool = False

    @property
    def has_state(self) -> bool:
        """Whether a step depends on those before it."""
        return self.momentum > 0

    @property
    def is_plain(self) -> bool:
        """Whether a step subtracts the rate times the gradient alone."""
        return not (self.has_state or self.clips or self.weight_decay)

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped."""
        return self.clip_norm is not None or self.agc is not None

    @property
    def coupled_decay(self) -> float:
        """The coefficient of the weights that are added to the gradient."""
        return self.weight_decay

    def lr_in(self, round: int) -> float:
        """Return the learning rate in a round, from 0."""
        return self.lr if self.schedule == CONSTANT else self.lr * rate_factor(self.schedule, round)

    def in_round(self, round: int) -> Sgd:
        """Return the optimizer with the constant rate of a round."""
        return self if self.schedule == CONSTANT else replace(self, lr=self.lr_in(round), schedule=CONSTANT)

    def first_state(self, params: Tree) -> Tree:
        """Return the state that a client keeps before its first step: nothing, unless the state is ``kept``."""
        return tmap(torch.zeros_like, params) if self.kept else {}

    def clipped(self, grads: Tree, w: Tree, head: str) -> Tree:
        """Return one client's gradient at the weights ``w``, clipped; ``head`` is the name of the head's weight."""
        if self.agc is not None:
            grads = unitwise_clipped(grads, w, self.agc, head)
        return grads if self.clip_norm is None else clipped(grads, self.clip_norm)

    def advance(self, direction: Tree, state: Tree, w: Tree, taken: int | Tree) -> tuple[Tree, Tree]:
        """Return what is subtracted from the weights ``w`` at the learning rate 1, and the next state.

        Args:
            direction: the method's direction.
            state: the velocity, empty for zero.
            w: the weights.
            taken: steps taken in this round, this one among them; each parameter's, 0-d or (N,), where they differ.
        """
        moved = {name: self.momentum * state[name] + leaf for name, leaf in direction.items()} if state else direction
        if self.nesterov:
            return {name: leaf + self.momentum * moved[name] for name, leaf in direction.items()}, moved
        return moved, moved


@dataclass(frozen=True)
class Adam(Sgd):
    """Adam as ``torch.optim.Adam`` defines it, or, ``decoupled``, ``torch.optim.AdamW``; with torch's betas and eps.

    The method's direction takes the place of the gradient. The state is a tree of both moments, ``first/name`` and
    ``second/name``. If it is kept over rounds, it also has the sum of the weights in each moment, ``first/weight/name``
    and ``second/weight/name`` (0-d), because clients have taken different numbers of steps.
    """

    decoupled: bool = False

    @property
    def has_state(self) -> bool:
        return True

    @property
    def coupled_decay(self) -> float:
        """Nothing for AdamW, which shrinks the weights themselves."""
        return 0.0 if self.decoupled else self.weight_decay

    def first_state(self, params: Tree) -> Tree:
        """Return zero moments, and zero sums of their weights."""
        if not self.kept:
            return {}
        return {
            key: zero
            for name, leaf in params.items()
            for _, moment in _MOMENTS
            for key, zero in (
                (f"{moment}/{name}", torch.zeros_like(leaf)),
                (f"{moment}/weight/{name}", leaf.new_zeros(())),
            )
        }

    def advance(self, direction: Tree, state: Tree, w: Tree, taken: int | Tree) -> tuple[Tree, Tree]:
        """Return the first moment over the root of the second, both without bias, and the moments."""
        beta1, beta2 = BETAS
        out: Tree = {}
        after: Tree = {}
        for name, leaf in direction.items():
            # In place where a tensor is this step's own: new memory takes longer to write than memory in the cache.
            first, second = (1 - beta1) * leaf, leaf.square().mul_(1 - beta2)
            if state:
                first.add_(beta1 * state[f"first/{name}"])
                second.add_(beta2 * state[f"second/{name}"])
            after |= {f"first/{name}": first, f"second/{name}": second}
            count = taken if isinstance(taken, int) else aligned(taken[name], leaf)
            of_first, of_second = 1 - beta1**count, 1 - beta2**count
            if self.kept:  # by the moments' own recursion, which keeps its precision in float32
                weights = [beta * state[f"{moment}/weight/{name}"] + (1 - beta) for beta, moment in _MOMENTS]
                after |= {f"{moment}/weight/{name}": sum_ for (_, moment), sum_ in zip(_MOMENTS, weights, strict=True)}
                of_first, of_second = (aligned(sum_, leaf) for sum_ in weights)
            root = (second / of_second).sqrt_().add_(EPS)
            out[name] = (first / of_first).div_(root)
            if self.decoupled and self.weight_decay:
                out[name] = out[name] + self.weight_decay * w[name]
        return out, after


def clipped(grads: Tree, clip_norm: float) -> Tree:
    """Return one client's gradient scaled to at most a norm, as ``torch.nn.utils.clip_grad_norm_`` scales it."""
    norm = torch.stack([leaf.square().sum() for leaf in grads.values()]).sum().sqrt()
    scale = (clip_norm / (norm + 1e-6)).clamp(max=1)
    return {name: leaf * scale for name, leaf in grads.items()}


def unitwise_clipped(grads: Tree, w: Tree, agc: float, head: str) -> Tree:
    """Return one client's gradient after adaptive gradient clipping (Brock et al. 2021, arXiv 2102.06171, eq. 3).

    The gradient of a unit has at most ``agc`` times the norm of its weights, or ``agc`` / 1000 if they are shorter. A
    unit is a slice of the first axis, all weights that lead to one output; a vector (biases, gains) is one unit. As in
    the paper, the classifier is not clipped: the parameters of the module whose weight is ``head``.
    """
    classifier = f"{head.rpartition('.')[0]}." if head else None
    out: Tree = {}
    for name, leaf in grads.items():
        norm, largest = _unit_norms(leaf), agc * _unit_norms(w[name]).clamp_min(SHORTEST_UNIT)
        shorter = leaf * (largest / norm.clamp_min(1e-6))
        keep = classifier is not None and name.startswith(classifier)
        out[name] = leaf if keep else torch.where(norm > largest, shorter, leaf)
    return out


def _unit_norms(leaf: Tensor) -> Tensor:
    dims = tuple(range(1, leaf.dim())) or None
    norms: Tensor = torch.linalg.vector_norm(leaf, dim=dims, keepdim=dims is not None)
    return norms
