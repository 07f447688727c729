"""The local training of one client, or of a stack of clients, as one pure function.

Both use the same code: a hook of the method is *lifted*, by the identity for one client, by ``torch.func.vmap`` for a
stack. Clients share nothing, so the gradient of the sum of their losses is each client's own gradient.

Shape suffixes: N clients (absent for one), E local steps, B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from flbench.engine.clients import ClientInit, ClientResult, ClientTask
from flbench.engine.hooks import Lift, LiftedHooks
from flbench.engine.optimizers import descend, rates_of, where
from flbench.methods.base import Outputs, Tree, tmap
from flbench.models.layers import at_least_float
from flbench.models.network import Forward


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
    params, velocity = tmap(torch.clone, start.params), tmap(torch.clone, start.velocity)
    buffers = tmap(torch.clone, start.buffers)  # batch normalization updates them in place
    lifted = LiftedHooks(method, lift, task, start)
    rates = rates_of(task.each.get("lr", sgd.lr), params)
    losses = []
    for step, (images, labels, sizes) in enumerate(batches):
        # Which clients (N,) take this step; None if all do.
        training = step < start.steps if isinstance(start.steps, Tensor) else None
        buffers_before = buffers if training is None else tmap(torch.clone, buffers)
        batch = images, labels, sizes, _taught(passes, lifted, task, images) if lifted.teachers else {}
        loss, grads = _gradient(passes, lifted, task, params, buffers, batch)
        if lifted.perturbs:
            with torch.no_grad():
                there = lifted.perturbed(params, dict(zip(names, grads, strict=True)))
            there = {name: there[name] for name in names}  # a method may give them another order
            _, grads = _gradient(passes, lifted, task, there, tmap(torch.clone, buffers), batch)
        with torch.no_grad():
            weights = list(params.values())
            if sgd.clips:
                short = lift(partial(sgd.clipped, head=task.head))(dict(zip(names, grads, strict=True)), params)
                grads = tuple(short[name] for name in names)
            if sgd.coupled_decay:
                grads = torch._foreach_add(grads, weights, alpha=sgd.coupled_decay)
            direction = lifted.direction(params, dict(zip(names, grads, strict=True)))
            if sgd.has_state:
                direction = direction if velocity else lifted.kept(direction)
                direction, moved = sgd.advance(direction, velocity, params, step)
                velocity = where(training, moved, velocity)
            steps = where(training, lifted.step(params, direction))
            descend(weights, [steps[name] for name in names], rates)  # a method may give them another order
            buffers = where(training, buffers, buffers_before)
        losses.append(where(training, {"loss": loss.detach()})["loss"])
    with torch.no_grad():
        state, message = lifted.finish(params, buffers)
    loss = reduce(torch.add, losses) / start.steps  # one by one: zeros of steps not taken change no bit
    return ClientResult(params, buffers, velocity, state, message, loss)


def _taught(passes: Passes, lifted: LiftedHooks, task: ClientTask, images: Tensor) -> dict[str, Outputs]:
    """The teachers' outputs on a batch."""
    with autocast(images.device, task.autocast):
        outputs = passes.evaluate(lifted.teachers.values(), images)
    return {name: Outputs(*map(at_least_float, each)) for name, each in zip(lifted.teachers, outputs, strict=True)}


def _gradient(
    passes: Passes,
    lifted: LiftedHooks,
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


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return the context of mixed precision, or an empty one.

    The cache of cast weights is off: each is used once, and a recorded graph must not read one made outside of it.
    """
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype, cache_enabled=False)
