"""The local training of one client, or of a stack of clients, as one pure function.

Both use the same code: a hook of the method is *lifted*, by the identity for one client, by ``torch.func.vmap`` for a
stack. Clients share nothing, so the gradient of the sum of their losses is each client's own gradient.

Shape suffixes: N clients (absent for one), E local steps, B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.engine.device_data import StackedBatches
from flbench.engine.optimizers import Sgd as Sgd
from flbench.engine.optimizers import clipped, descend, where
from flbench.errors import UserError
from flbench.methods.base import Batch, Context, Method, Outputs, Tree, overrides
from flbench.models.layers import at_least_float
from flbench.models.network import Forward

#: Turns a function of one client's tensors into one of a client's, or of a stack's.
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class ClientTask:
    """What the clients of a chunk share in a round.

    Attributes:
        method: the federated method.
        sgd: the local optimizer.
        x: shared parameters at the start of the round.
        server: what else the server broadcasts.
        autocast: dtype of mixed precision, or None.
        round: number of the round, plain or 0-d. ``head``: name of the head's weight.
        each: empty for clients of one run. For a stack of clients of several runs, what differs between them, with the
            leading axis N: ``x``, ``server``, ``lr`` and, unless it is a plain number, ``round``.
        hyperparameters: the method's fields that differ between the runs, likewise.
    """

    method: Method
    sgd: Sgd
    x: Tree
    server: Tree
    autocast: torch.dtype | None = None
    round: int | Tensor = 0
    head: str = ""
    each: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientInit:
    """The state of a client (or of a stack of clients) before training, which does not change it.

    Attributes:
        params: all parameters, including those that stay on the client.
        buffers: all buffers.
        velocity: state of the optimizer, or an empty tree for zero.
        state: the method's client state.
        counts_Y: training samples of each class.
        steps: number of local steps; a tensor (N,) of floats for a stack whose clients take unequal numbers.
        relative_size: number of training samples over the mean of all clients of the run.
    """

    params: Tree
    buffers: Tree
    velocity: Tree
    state: Tree
    counts_Y: Tensor
    steps: int | Tensor
    relative_size: Tensor


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


@dataclass(frozen=True)
class Passes:
    """The forward passes of a network that no other thread uses, in training mode except during ``evaluate``."""

    network: nn.Module
    forward: Forward

    def evaluate(self, models: Iterable[tuple[Tree, Tree]], images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return features and logits in evaluation mode of models given as (parameters, buffers)."""
        self.network.eval()
        try:
            with torch.no_grad():
                return [self.forward(params, buffers, images) for params, buffers in models]
        finally:
            self.network.train()


def local_train(
    passes: Passes,
    lift: Lift,
    task: ClientTask,
    start: ClientInit,
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
) -> ClientResult:
    """Run the local steps.

    Args:
        passes: the network, in training mode.
        lift: applies a hook that is written for one client.
        task: what the clients share.
        start: the state of this client (or stack) before training.
        batches: for each of E steps the network's input (B, C, H, W) or (N, B, C, H, W), and labels (B,) or (N, B). For
            a stack with unequal steps, E is the largest number; the batches of the steps that a client does not take
            do not affect its result. Third, for a stack with partial batches, the number of samples (N,) of each batch.
            The samples beyond it do not affect the result if the network and the method treat each sample by itself
            (``partial_batches``).

    Returns:
        The state after training; for a stack every tensor has the leading axis N.
    """
    method, sgd = task.method, task.sgd
    names = list(start.params)
    params, velocity = _clone(start.params), _clone(start.velocity)
    buffers = _clone(start.buffers)  # batch normalization updates them in place
    lifted = _LiftedHooks(method, lift, task, start)
    lr = task.each.get("lr", sgd.lr)
    losses = []
    for step, (images, labels, sizes) in enumerate(batches):
        # Which clients (N,) take this step; None if all do.
        training = step < start.steps if isinstance(start.steps, Tensor) else None
        buffers_before = buffers if training is None else _clone(buffers)
        batch = images, labels, sizes, _taught(passes, lifted, task, images) if lifted.teachers else {}
        loss, grads = _gradient(passes, lifted, task, params, buffers, batch)
        if lifted.perturbs:
            with torch.no_grad():
                there = lifted.perturbed(params, dict(zip(names, grads, strict=True)))
            there = {name: there[name] for name in names}  # a method may give them another order
            _, grads = _gradient(passes, lifted, task, there, _clone(buffers), batch)
        with torch.no_grad():
            weights = list(params.values())
            if sgd.clip_norm is not None:
                short = lift(partial(clipped, clip_norm=sgd.clip_norm))(dict(zip(names, grads, strict=True)))
                grads = tuple(short[name] for name in names)
            if sgd.coupled_decay:
                grads = torch._foreach_add(grads, weights, alpha=sgd.coupled_decay)
            direction = lifted.direction(params, dict(zip(names, grads, strict=True)))
            if sgd.has_state:
                direction = direction if velocity else lifted.kept(direction)
                direction, moved = sgd.advance(direction, velocity, params, step)
                velocity = where(training, moved, velocity)
            steps = where(training, direction)
            descend(weights, [steps[name] for name in names], lr)  # a method may give them another order
            buffers = where(training, buffers, buffers_before)
        losses.append(where(training, {"loss": loss.detach()})["loss"])
    with torch.no_grad():
        state, message = lifted.finish(params, buffers)
    loss = reduce(torch.add, losses) / start.steps  # one by one: zeros of steps not taken change no bit
    return ClientResult(params, buffers, velocity, state, message, loss)


def _taught(passes: Passes, lifted: _LiftedHooks, task: ClientTask, images: Tensor) -> dict[str, Outputs]:
    """The teachers' outputs on a batch."""
    with autocast(images.device, task.autocast):
        outputs = passes.evaluate(lifted.teachers.values(), images)
    return {name: Outputs(*map(at_least_float, each)) for name, each in zip(lifted.teachers, outputs, strict=True)}


def _gradient(
    passes: Passes,
    lifted: _LiftedHooks,
    task: ClientTask,
    params: Tree,
    buffers: Tree,
    batch: tuple[Tensor, Tensor, Tensor | None, Mapping[str, Outputs]],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The data term of the loss, and the gradient of the whole loss; updates the buffers in place."""
    images, labels, sizes, teachers = batch
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with autocast(images.device, task.autocast):
        features, logits = passes.forward(leaves, buffers, images)
    loss, objective = lifted.loss_terms(leaves, (labels, sizes), features, logits, teachers)
    grads = torch.autograd.grad(
        objective, list(leaves.values()), torch.ones_like(objective), allow_unused=True, materialize_grads=True
    )
    return loss, grads


def _clone(tree: Tree) -> Tree:
    return {name: leaf.clone() for name, leaf in tree.items()}


def autocast(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    """Return the context of mixed precision, or of none.

    The cache of cast weights is off: each is used once, and a recorded graph must not read one made outside of it.
    """
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


def cross_entropy(logits_BY: Tensor, labels_B: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy over the batch: 0-d for one client, (N,) for a stack.

    ``sizes`` (N,): only so many samples of each client's batch, the first ones, are there.
    """
    batch = labels_B.shape[-1]
    # Classes before samples: with the few classes last, torch takes three times as long.
    each = F.cross_entropy(logits_BY.view(-1, *logits_BY.shape[-2:]).mT, labels_B.view(-1, batch), reduction="none")
    if sizes is None:
        return each.mean(-1).view(labels_B.shape[:-1])
    there = torch.arange(batch, device=sizes.device) < sizes[:, None]
    return torch.where(there, each, 0).sum(-1) / sizes.clamp(min=1)


#: The hooks that are applied to one client or mapped over a stack.
_LIFTED = ("teachers", "logits", "loss", "penalty", "perturbed", "direction", "finish")


class _LiftedHooks:
    """The method's hooks, applied to one client or a stack; default hooks are skipped.

    Attributes:
        teachers: the parameters and buffers of each teacher by its name.
        perturbs: whether the method perturbs the weights.
    """

    def __init__(self, method: Method, lift: Lift, task: ClientTask, start: ClientInit) -> None:
        self._method, self._lift = method, lift
        self._context = Context(
            x=task.x,
            server=task.server,
            client=start.state,
            counts_Y=start.counts_Y,
            lr=task.sgd.lr,
            steps=start.steps,
            relative_size=start.relative_size,
            round=task.round,
            head=task.head,
            buffers=start.buffers,
        )
        #: The part of the context that differs between clients.
        self._own_context: dict[str, Any] = {
            "client": start.state,
            "counts_Y": start.counts_Y,
            "relative_size": start.relative_size,
            "buffers": start.buffers,
            **task.each,
        }
        self._hyperparameters: dict[str, Any] = dict(task.hyperparameters)
        if isinstance(start.steps, Tensor):
            self._own_context["steps"] = start.steps
        self._stacked = start.relative_size.dim() == 1
        self._all_clients: tuple[Method, Context] | None = None
        self._own = {hook for hook in _LIFTED if overrides(type(method), hook)}
        self.perturbs = "perturbed" in self._own
        self.teachers = self._teachers(start) if "teachers" in self._own else {}

    def _apply(self, hook: str, *trees: Any) -> Any:
        """``hook(*trees, ctx)`` with each client's own context and hyperparameters."""

        def one_client(own: dict[str, Any], hyperparameters: dict[str, Any], *mine: Any) -> Any:
            method = replace(self._method, **hyperparameters)
            return getattr(method, hook)(*mine, replace(self._context, **own))

        return self._lift(one_client)(self._own_context, self._hyperparameters, *trees)

    def _apply_to_batch(self, hook: str, leaves: Tree, batch: Batch) -> Tensor:
        """The same for a loss term; vmap takes tensors only, and trees of them."""

        def one_client(own: dict[str, Any], hyperparameters: dict[str, Any], w: Tree, plain: Any, taught: Any) -> Any:
            method = replace(self._method, **hyperparameters)
            mine = Batch(**plain, teachers={name: Outputs(*each) for name, each in taught.items()})
            value = getattr(method, hook)(w, mine, replace(self._context, **own))
            return mine.logits_BY.new_full((), value) if isinstance(value, float | int) else value

        plain = {"labels_B": batch.labels_B, "features_BD": batch.features_BD, "logits_BY": batch.logits_BY}
        taught = {name: (each.features_BD, each.logits_BY) for name, each in batch.teachers.items()}
        term: Tensor = self._lift(one_client)(self._own_context, self._hyperparameters, leaves, plain, taught)
        return term

    def _apply_to_trees(self, hook: str, *trees: Tree) -> Any:
        """The same for a hook that may be elementwise: of a stack it sees all clients, along the last axis."""
        if not (self._method.elementwise and self._stacked):
            return self._apply(hook, *trees)
        if self._all_clients is None:
            self._all_clients = self._context_of_all()
        out = getattr(self._all_clients[0], hook)(*map(_clients_last, trees), self._all_clients[1])
        return _clients_first(out) if isinstance(out, dict) else tuple(map(_clients_first, out))

    def _context_of_all(self) -> tuple[Method, Context]:
        """Method and context of a whole stack: numbers of each client (N,) broadcast along the last axis of leaves."""
        own = dict(self._own_context)
        for name in ("x", "server", "client", "buffers"):
            shared = {key: leaf.unsqueeze(-1) for key, leaf in getattr(self._context, name).items()}
            own[name] = _clients_last(own[name]) if name in own else shared
        return replace(self._method, **self._hyperparameters), replace(self._context, **own)

    def _teachers(self, start: ClientInit) -> dict[str, tuple[Tree, Tree]]:
        with torch.no_grad():
            given: dict[str, Tree] = self._apply("teachers")
        known = start.params.keys() | start.buffers.keys()
        for teacher, tree in given.items():
            if unknown := sorted(tree.keys() - known):
                raise UserError(
                    f"the hook teachers of the method {self._method.name!r} returned {unknown[0]!r} in {teacher!r}; "
                    "expected names of parameters and buffers of the network"
                )

        def part(tree: Tree, own: Tree) -> Tree:
            whole = {**own, **tree}
            return {name: _laid_out(whole[name], leaf) for name, leaf in own.items()}

        return {teacher: (part(tree, start.params), part(tree, start.buffers)) for teacher, tree in given.items()}

    def loss_terms(
        self,
        leaves: Tree,
        target: tuple[Tensor, Tensor | None],
        features: Tensor,
        logits: Tensor,
        teachers: Mapping[str, Outputs],
    ) -> tuple[Tensor, Tensor]:
        """Return the data term and the whole loss; ``target`` are the labels and the sizes of a stack's batches."""
        z = at_least_float(logits)
        if not self._own & {"loss", "penalty"}:
            loss = self._cross_entropy(z, *target)
            return loss, loss
        batch = Batch(target[0], at_least_float(features), z, teachers)
        loss = self._apply_to_batch("loss", leaves, batch) if "loss" in self._own else self._cross_entropy(z, *target)
        return loss, loss + self._apply_to_batch("penalty", leaves, batch) if "penalty" in self._own else loss

    def _cross_entropy(self, z: Tensor, labels: Tensor, sizes: Tensor | None) -> Tensor:
        return cross_entropy(self._apply("logits", z) if "logits" in self._own else z, labels, sizes)

    def perturbed(self, params: Tree, grads: Tree) -> Tree:
        out: Tree = self._apply("perturbed", params, grads)
        return out

    def direction(self, params: Tree, grads: Tree) -> Tree:
        if "direction" not in self._own:
            return grads
        out: Tree = self._apply_to_trees("direction", params, grads)
        return out

    def kept(self, direction: Tree) -> Tree:
        """The direction as a velocity; a copy, because a method may return the weights, which move in place."""
        return _clone(direction) if "direction" in self._own else direction

    def finish(self, params: Tree, buffers: Tree) -> tuple[Tree, Tree]:
        if "finish" not in self._own:
            return self._context.client, {}
        self._own_context["buffers"] = buffers
        self._all_clients = None
        out: tuple[Tree, Tree] = self._apply_to_trees("finish", params)
        return out


def _clients_last(tree: Tree) -> Tree:
    return {name: leaf.movedim(0, -1) for name, leaf in tree.items()}


def _clients_first(tree: Tree) -> Tree:
    return {name: leaf.movedim(-1, 0) for name, leaf in tree.items()}


def _laid_out(leaf: Tensor, like: Tensor) -> Tensor:
    """The leaf in the memory layout of another one, for the speed of convolutions."""
    last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return leaf.detach().contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
