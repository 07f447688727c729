"""The local training of one client, or of a stack of clients, as one pure function.

Both use the same code: a hook of the method is *lifted*, by the identity for one client, by ``torch.func.vmap`` for a
stack. Clients share nothing, so the gradient of the sum of their losses is each client's own gradient.

Shape suffixes: N clients (absent for one), E local steps, B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.engine.device_data import StackedBatches
from flbench.methods.base import Context, Method, Tree
from flbench.models.layers import at_least_float
from flbench.models.network import Forward

#: Turns a function of one client's tensors into one of a client's, or of a stack's.
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Sgd:
    """Plain SGD as ``torch.optim.SGD`` defines it; the learning rate is constant."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class ClientTask:
    """What the clients of a chunk share in a round.

    Attributes:
        method: the federated method.
        sgd: the local optimizer.
        x: server parameters at the start of the round.
        server: server state as far as the method broadcasts it.
        autocast: dtype of mixed precision, or None.
        each: empty for clients of one run. For a stack of clients of several runs, what differs between them, with the
            leading axis N: ``x``, ``server`` and ``lr``.
        hyperparameters: the method's fields that differ between the runs, likewise.
    """

    method: Method
    sgd: Sgd
    x: Tree
    server: Tree
    autocast: torch.dtype | None = None
    each: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientInit:
    """The state of a client (or of a stack of clients) before training, which does not change it.

    Attributes:
        params: all parameters, including those that stay on the client.
        buffers: all buffers.
        velocity: momentum, or an empty tree for zero.
        state: the method's client state.
        counts_Y: training samples of each class.
        steps: number of local steps; a tensor (N,) of floats for a stack whose clients take unequal numbers.
    """

    params: Tree
    buffers: Tree
    velocity: Tree
    state: Tree
    counts_Y: Tensor
    steps: int | Tensor


@dataclass(frozen=True)
class ClientResult:
    """What ``ClientInit`` holds, after training; the message; the mean training loss of the steps."""

    params: Tree
    buffers: Tree
    velocity: Tree
    state: Tree
    message: Tree
    loss: Tensor


@dataclass(frozen=True)
class ChunkJob:
    """The local training of one chunk of clients: what they share, how they start, and their batches."""

    task: ClientTask
    init: ClientInit
    batches: StackedBatches


#: Returns the job of the clients at these positions. It may be called in any thread, ahead of the chunk that is
#: yielded, and again where a chunk has to be repeated.
JobAt = Callable[[slice], ChunkJob]

#: Positions and results of one chunk after another, in order; the results have the leading axis N.
Results = Iterator[tuple[slice, ClientResult]]

#: Trains a number of clients chunk by chunk.
Train = Callable[[int, JobAt], Results]

InitOrResult = TypeVar("InitOrResult", ClientInit, ClientResult)


def map_tensors(value: InitOrResult, function: Callable[[Tensor], Tensor]) -> InitOrResult:
    """Return a copy with ``function`` applied to every tensor."""

    def mapped(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: function(leaf) for name, leaf in part.items()}
        return function(part) if isinstance(part, Tensor) else part

    return replace(value, **{each.name: mapped(getattr(value, each.name)) for each in fields(value)})


def local_train(
    forward: Forward, lift: Lift, task: ClientTask, start: ClientInit, batches: Iterable[tuple[Tensor, Tensor]]
) -> ClientResult:
    """Run the local steps.

    Args:
        forward: the network as a function of parameters, buffers and images.
        lift: applies a hook that is written for one client.
        task: what the clients share.
        start: the state of this client (or stack) before training.
        batches: for each of E steps the network's input (B, C, H, W) or (N, B, C, H, W), and labels (B,) or (N, B). For
            a stack with unequal steps, E is the largest number; the batches of the steps that a client does not take
            do not affect its result.

    Returns:
        The state after training; for a stack every tensor has the leading axis N.
    """
    method, sgd = task.method, task.sgd
    names = list(start.params)
    params = {name: leaf.clone() for name, leaf in start.params.items()}
    buffers = {name: leaf.clone() for name, leaf in start.buffers.items()}  # batch normalization updates them in place
    velocity = {name: leaf.clone() for name, leaf in start.velocity.items()}
    lifted = _LiftedHooks(method, lift, task, start)
    lr = task.each.get("lr", sgd.lr)
    losses = []
    for step, (images, labels) in enumerate(batches):
        # Which clients (N,) take this step; None if all do.
        training = step < start.steps if isinstance(start.steps, Tensor) else None
        buffers_before = buffers if training is None else {name: leaf.clone() for name, leaf in buffers.items()}
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with autocast(images.device, task.autocast):
            features, logits = forward(leaves, buffers, images)
        loss = cross_entropy(lifted.logits(at_least_float(logits)), labels)
        objective = lifted.add_penalty(loss, leaves, at_least_float(features))
        grads = torch.autograd.grad(
            objective, list(leaves.values()), torch.ones_like(objective), allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            weights = list(params.values())
            if sgd.weight_decay:
                grads = torch._foreach_add(grads, weights, alpha=sgd.weight_decay)
            direction = lifted.direction(dict(zip(names, grads, strict=True)))
            if sgd.momentum:
                moved = {n: sgd.momentum * velocity[n] + d if velocity else d for n, d in direction.items()}
                velocity = direction = _where(training, moved, velocity)
            steps = _where(training, direction)
            _descend(weights, [steps[name] for name in names], lr)  # a method may give them another order
            buffers = _where(training, buffers, buffers_before)
        losses.append(_where(training, {"loss": loss.detach()})["loss"])
    with torch.no_grad():
        state, message = lifted.finish(params)
    loss = reduce(torch.add, losses) / start.steps  # one by one: zeros of steps not taken change no bit
    return ClientResult(params, buffers, velocity, state, message, loss)


def autocast(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    """Return the context of mixed precision, or of none.

    The cache of cast weights is off: each is used once, and a recorded graph must not read one made outside of it.
    """
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


def _descend(weights: list[Tensor], direction: list[Tensor], lr: float | Tensor) -> None:
    """Subtract the rate, common or of each client (N,), times the direction, in place; on a CPU with the same bits."""
    if isinstance(lr, Tensor):
        rates = [lr.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1)) for leaf in weights]
        torch._foreach_addcmul_(weights, direction, rates, value=-1)
    else:
        torch._foreach_add_(weights, direction, alpha=-lr)


def _where(training: Tensor | None, new: Tree, old: Tree | None = None) -> Tree:
    """``new`` for the clients that take this step, ``old`` (or zero) for those that have taken all of theirs."""
    if training is None:
        return new
    return {
        name: torch.where(training.view(-1, *[1] * (leaf.dim() - 1)), leaf, old[name] if old else 0)
        for name, leaf in new.items()
    }


def cross_entropy(logits_BY: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean cross-entropy over the batch: 0-d for one client, (N,) for a stack."""
    batch = labels_B.shape[-1]
    # Classes before samples: with the few classes last, torch takes three times as long.
    each = F.cross_entropy(logits_BY.view(-1, *logits_BY.shape[-2:]).mT, labels_B.view(-1, batch), reduction="none")
    return each.mean(-1).view(labels_B.shape[:-1])


class _LiftedHooks:
    """The method's hooks, applied to one client or a stack; default hooks are skipped."""

    def __init__(self, method: Method, lift: Lift, task: ClientTask, start: ClientInit) -> None:
        self._method, self._lift = method, lift
        self._context = Context(
            x=task.x,
            server=task.server,
            client=start.state,
            counts_Y=start.counts_Y,
            lr=task.sgd.lr,
            steps=start.steps,
        )
        #: The part of the context that differs between clients.
        self._own_context: dict[str, Any] = {"client": start.state, "counts_Y": start.counts_Y, **task.each}
        self._hyperparameters = dict(task.hyperparameters)
        if isinstance(start.steps, Tensor):
            self._own_context["steps"] = start.steps
        #: Whether the numbers that hooks compute with are the same for the whole stack.
        self._uniform = not (task.each or isinstance(start.steps, Tensor))

    def _own(self, hook: str) -> bool:
        return getattr(type(self._method), hook) is not getattr(Method, hook)

    def _apply(self, hook: str, *trees: Any) -> Any:
        """``hook(*trees, ctx)`` with each client's own context and hyperparameters."""

        def one_client(own: dict[str, Any], hyperparameters: dict[str, Any], *mine: Any) -> Any:
            method = replace(self._method, **hyperparameters)
            value = getattr(method, hook)(*mine, replace(self._context, **own))
            # A penalty may be a number, but vmap takes tensors only.
            return mine[-1].new_full((), value) if isinstance(value, float | int) else value

        return self._lift(one_client)(self._own_context, self._hyperparameters, *trees)

    def _apply_to_trees(self, hook: str, tree: Tree) -> Any:
        """The same for a hook that may be elementwise."""
        if self._method.elementwise and self._uniform:
            return getattr(self._method, hook)(tree, self._context)
        return self._apply(hook, tree)

    def logits(self, z: Tensor) -> Tensor:
        out: Tensor = self._apply("logits", z) if self._own("logits") else z
        return out

    def add_penalty(self, loss: Tensor, leaves: Tree, features: Tensor) -> Tensor:
        return loss + self._apply("penalty", leaves, features) if self._own("penalty") else loss

    def direction(self, grads: Tree) -> Tree:
        out: Tree = self._apply_to_trees("direction", grads) if self._own("direction") else grads
        return out

    def finish(self, params: Tree) -> tuple[Tree, Tree]:
        if not self._own("finish"):
            return self._context.client, {}
        out: tuple[Tree, Tree] = self._apply_to_trees("finish", params)
        return out
