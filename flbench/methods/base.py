"""The contract of a federated method, whose defaults are FedAvg.

A method is written for ONE client, as pure functions over trees (dicts of tensors by parameter name); the engine maps
it over clients, in a loop or stacked. Its dataclass fields are its YAML hyperparameters. They may arrive as 0-d tensors
(one per run trained together), so no Python branch may depend on their values.

One round (x: server parameters, m_k: training samples of client k, S: the participants)::

    every k in S:  w = x, then K steps of   g = grad [CE(logits(z)) + penalty(w)] + weight_decay w
                                            w <- w - lr momentum(direction(g))
                   client state, message = finish(w)
    the server:    delta = sum_k p_k (w_k - x),   message = sum_k q_k message_k
                   x, server state <- server_step(x, delta, message, server state, |S|/N)

p = ``delta_weights``, by default the shares of the samples, m_k / sum_j m_j; q = ``message_weights``, by default
uniform. Buffers (running statistics) are always averaged by the shares, and bypass ``server_step``.

This module does not import torch: trees are only combined by their own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from flbench.registry import METHODS, Component

if TYPE_CHECKING:
    from torch import Tensor, nn

Tree = dict[str, Any]  # of tensors

#: Whose form of a method: its own paper's, the label-skew paper's text, or the label-skew paper's code.
Variant = Literal["original", "text", "code"]


def tmap(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``function`` to the leaves of the same name of one or more trees."""
    return {name: function(leaf, *(tree[name] for tree in trees[1:])) for name, leaf in trees[0].items()}


@dataclass(frozen=True)
class Context:
    """What a client has during its round.

    Attributes:
        x: server parameters at the start of the round.
        server: server state, if the method broadcasts it, else empty.
        client: this client's own state.
        counts_Y: its number of training samples a class.
        lr: local learning rate.
        steps: its own number of local steps K.
    """

    x: Tree
    server: Tree
    client: Tree
    counts_Y: Tensor
    lr: Any
    steps: Any


@METHODS.register("fedavg")
@dataclass(frozen=True)
class Method(Component):
    """FedAvg: x <- x + server_lr * delta (McMahan et al. 2017, Algorithm 1, at server_lr = 1)."""

    #: What the method computes and where that is written, for programs (``flbench show methods --json``).
    equation: ClassVar[str] = "x <- x + server_lr sum_k m_k/m (w_k - x)"
    source: ClassVar[str] = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks, Algorithm 1"

    #: Whether clients receive the server state each round (it then counts as bytes down).
    broadcasts_state: ClassVar[bool] = False

    #: Whether ``direction`` and ``finish`` combine leaves element by element only, so that they serve a stack of
    #: clients as they are, by broadcasting. Anything else is mapped over the clients, which costs more; so are these
    #: where the clients' numbers of steps differ.
    elementwise: ClassVar[bool] = False

    #: Fewest samples in a training batch that the method can work with.
    smallest_batch: ClassVar[int] = 1

    server_lr: Annotated[float, Field(gt=0)] = 1.0

    def init_server(self, x: Tree) -> Tree:
        """Return the server's state before the first round."""
        return {}

    def init_client(self, x: Tree) -> Tree:
        """Return a client's state before its first round."""
        return {}

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        """Return what enters the cross-entropy, from the network's logits."""
        return z_BY

    def penalty(self, w: Tree, feats_BD: Tensor, ctx: Context) -> Tensor | float:
        """Return a 0-d term added to the loss; ``feats_BD`` is the input of the head."""
        return 0.0

    def direction(self, g: Tree, ctx: Context) -> Tree:
        """Return the descent direction from the gradient (weight decay included), before momentum."""
        return g

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Return the client's next state and its message to the server, after the last local step at ``w``."""
        return ctx.client, {}

    def delta_weights(self, share: Sequence[float], steps: Sequence[int], momentum: float) -> Sequence[float]:
        """Return the weight of each participant's w_k - x, from its share of the samples, its steps and momentum."""
        return share

    def message_weights(self, share: Sequence[float]) -> Sequence[float]:
        """Return the weight of each participant's message."""
        return [1 / len(share)] * len(share)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, participation: float) -> tuple[Tree, Tree]:
        """Return the next server parameters and state; ``participation`` is |S| / N."""
        return tmap(lambda a, d: a + self.server_lr * d, x, delta), state

    def local_names(self, model: nn.Module) -> frozenset[str]:
        """Return parameters and buffers that stay on the client: never sent, never averaged."""
        return frozenset()
