"""The contract of a federated method, whose defaults are FedAvg.

A method is written for ONE client, as pure functions over trees (dicts of tensors by parameter name); the engine maps
it over clients, in a loop or stacked. Its dataclass fields are its YAML hyperparameters. They may arrive as 0-d tensors
(one per run trained together), so no Python branch may depend on their values.

One round (x: server parameters, m_k: training samples of client k, S: the participants)::

    every k in S:  w = x, then K steps of   g = grad [CE(logits(z)) + penalty(w)] + weight_decay w
                                            w <- w - lr momentum(direction(g))
                   client state, message = finish(w)
    the server:    delta = sum_k m_k (w_k - x) / sum_k m_k,     message = mean_k message_k
                   x, server state <- server_step(x, delta, message, server state, |S|/N)

Buffers (running statistics) are averaged with the weights of ``delta`` and bypass ``server_step``.

This module does not import torch: trees are only combined by their own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from flbench.registry import METHODS, Component

if TYPE_CHECKING:
    from torch import Tensor, nn

Tree = dict[str, Any]  # of tensors


def tmap(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``function`` to the leaves of the same name of one or more trees."""
    return {name: function(leaf, *(tree[name] for tree in trees[1:])) for name, leaf in trees[0].items()}


@dataclass(frozen=True)
class Context:
    """What a client knows during its round.

    Attributes:
        x: server parameters at the start of the round.
        server: server state, if the method broadcasts it, else empty.
        client: this client's own state.
        counts_Y: its number of training samples a class.
        lr: local learning rate.
        steps: number of local steps K.
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

    #: Whether clients receive the server state each round (it then counts as bytes down).
    broadcasts_state: ClassVar[bool] = False

    #: Whether ``direction`` and ``finish`` combine leaves element by element only, so that they serve a stack of
    #: clients as they are, by broadcasting. Anything else is mapped over the clients, which costs more.
    elementwise: ClassVar[bool] = False

    server_lr: Annotated[float, Field(gt=0)] = 1.0

    def init_server(self, x: Tree) -> Tree:
        """The server's state before the first round."""
        return {}

    def init_client(self, x: Tree) -> Tree:
        """A client's state before its first round."""
        return {}

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        """What enters the cross-entropy, from the network's logits."""
        return z_BY

    def penalty(self, w: Tree, feats_BD: Tensor, ctx: Context) -> Tensor | float:
        """A 0-d term added to the loss; ``feats_BD`` is the input of the head."""
        return 0.0

    def direction(self, g: Tree, ctx: Context) -> Tree:
        """The descent direction from the gradient (weight decay included), before momentum."""
        return g

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """The client's next state and its message to the server, after the last local step at ``w``."""
        return ctx.client, {}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, participation: float) -> tuple[Tree, Tree]:
        """The next server parameters and state; ``participation`` is |S| / N."""
        return tmap(lambda a, d: a + self.server_lr * d, x, delta), state

    def local_names(self, model: nn.Module) -> frozenset[str]:
        """Parameters and buffers that stay on the client: never sent, never averaged."""
        return frozenset()
