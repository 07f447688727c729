"""The local training of one client, or of a stack of clients, as one pure function.

Both use the same code: a hook of the method is *lifted*, by the identity for one client, by ``torch.func.vmap`` for a
stack. Clients share nothing, so the gradient of the sum of their losses is each client's own gradient.

Shape suffixes: N clients (absent for one), E local steps, B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, reduce
from itertools import tee

import torch
from torch import Tensor

from flbench.engine.class_statistics import class_statistics
from flbench.engine.clients import ChunkJob, ClientInit, ClientResult, ClientTask
from flbench.engine.device_data import OwnBatch
from flbench.engine.gradients import Passes, autocast, evaluating, gradient_of
from flbench.engine.hooks import Lift, LiftedHooks
from flbench.engine.observed import observed
from flbench.engine.own_training import OwnTraining
from flbench.methods.base import Tree, tmap
from flbench.models.layers import at_least_float

#: For each local step the network's input, labels, the sizes of partial batches, and the key of the step's masks.
Steps = Iterable[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]


def local_train(
    passes: Passes,
    lift: Lift,
    task: ClientTask,
    start: ClientInit,
    batches: Steps,
    own: Iterable[OwnBatch] = (),
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
            (``partial_batches``). Last, for a network with dropout, the key of the step's masks, 0-d or (N,).
        own: the client's training data, if the method asks for class statistics or layers observe.

    Returns:
        The state after training; for a stack every tensor has the leading axis N.
    """
    lifted = LiftedHooks(task.method, lift, task, start)
    frozen = {name: start.buffers[name] for name in task.frozen}
    # Batch normalization updates them in place.
    buffers = tmap(torch.clone, {name: leaf for name, leaf in start.buffers.items() if name not in frozen})
    if task.observation is not None:
        first, own = tee(own)
        received = lifted.of_network(start.params), start.buffers
        seen = observed(task.observation, passes, received, first, start.counts_Y, task.autocast)
        buffers = {name: seen[name] for name in buffers}
    if lifted.trains:
        params, velocity = tmap(torch.clone, start.params), start.velocity
        steps = [(images, labels, key) for images, labels, _, key in batches]
        names, of_network = lifted.of_network(params).keys(), lifted.of_network
        training = OwnTraining(steps, passes, names, of_network, buffers, frozen, task.autocast)
        params, loss = lifted.train(params, training, training.forward)
    else:
        params, buffers, velocity, loss = _steps(passes, lift, lifted, task, start, batches, buffers, frozen)
    lifted.begin(-1)
    with torch.no_grad():
        statistics: Tree = {}
        if task.method.statistics:
            trained = params, {**buffers, **frozen}
            w, seen = trained if task.method.statistics_of == "trained" else (start.params, start.buffers)
            model = lifted.of_network(w), seen
            with evaluating([passes.network]), autocast(start.counts_Y.device, task.autocast):
                statistics = class_statistics(
                    lambda images: at_least_float(passes.forward(*model, images)[0]),
                    own,
                    start.counts_Y,
                    covariances=task.method.statistics == "covariance",
                )
        state, message = lifted.finish(params, buffers, statistics)
        sent, state = lifted.upload(start.params, params, state)
    return ClientResult(params, buffers, velocity, state, message, loss, sent)


def _steps(
    passes: Passes,
    lift: Lift,
    lifted: LiftedHooks,
    task: ClientTask,
    start: ClientInit,
    batches: Steps,
    buffers: Tree,
    frozen: Tree,
) -> tuple[Tree, Tree, Tree, Tensor]:
    """Return parameters, buffers, the optimizer's state and the mean loss after the steps of SGD."""
    sgd, names = task.sgd, list(start.params)
    params, velocity = tmap(torch.clone, start.params), tmap(torch.clone, start.velocity)
    gradient = gradient_of(passes, lifted, task.autocast)
    gradient_there = gradient_of(passes, lifted, task.autocast) if lifted.perturbs else None
    rates = _rates_of(task.each.get("lr", sgd.lr), params)
    taken: int | Tree = 0  # steps, each parameter's where they differ
    notes, takes = [], []
    for step, (images, labels, sizes, key) in enumerate(batches):
        lifted.begin(step)
        # Which clients (N,) take this step; None if all do.
        training = step < start.steps if isinstance(start.steps, Tensor) else None
        buffers_before = buffers if training is None else tmap(torch.clone, buffers)
        batch = images, (labels, sizes), gradient.taught(images) if lifted.teachers else {}
        seen = {**buffers, **frozen} if frozen else buffers
        if key is not None:
            seen = {**seen, **{name: key ^ number for name, number in passes.mask_keys.items()}}
        phase = lifted.phase(names)
        note, grads = gradient(params, seen, *batch)
        grads = phase.of_gradient(grads)
        notes.append(note)
        takes.append(training)
        if gradient_there is not None:
            with torch.no_grad():
                there = lifted.perturbed(params, grads)
            there = {name: there[name] for name in names}  # a method may give them another order
            _, grads = gradient_there(there, tmap(torch.clone, seen), *batch)
            grads = phase.of_gradient(grads)
        with torch.no_grad():
            weights = list(params.values())
            if sgd.clips:
                grads = lift(partial(sgd.clipped, head=task.head))(grads, params)
            if sgd.coupled_decay:
                leaves = torch._foreach_add([grads[name] for name in names], weights, alpha=sgd.coupled_decay)
                grads = dict(zip(names, leaves, strict=True))
            direction = lifted.direction(params, grads)
            if sgd.has_state:
                # The first direction becomes the state; weights and gradients are overwritten.
                direction = direction if velocity else tmap(torch.clone, direction)
                taken = phase.counted(taken, params)
                direction, moved = sgd.advance(direction, velocity, params, taken)
                velocity = _where(training, phase.of_state(moved, velocity), velocity)
            steps = _where(training, phase.of_step(lifted.step(params, direction)))
            _descend(weights, [steps[name] for name in names], rates)  # a method may give them another order
            buffers = _where(training, buffers, buffers_before)
    with torch.no_grad():
        every = zip(takes, gradient.losses(notes), strict=True)
        losses = [_where(training, {"loss": loss})["loss"] for training, loss in every]
    loss = reduce(torch.add, losses) / start.steps  # one by one: zeros of steps not taken change no bit
    return params, buffers, velocity, loss


def with_twin(
    result: ClientResult, passes: Passes, lift: Lift, work: ChunkJob, batches: Callable[[], Steps]
) -> ClientResult:
    """Return the result of a job with its second set of weights, if it has one, trained on the same batches."""
    if work.twin is None:
        return result
    init = work.init
    params, buffers = ({name: init.twin.get(name, tree[name]) for name in tree} for tree in (init.params, init.buffers))
    params = {name: leaf for name, leaf in params.items() if name not in work.task.extra}
    own = local_train(passes, lift, work.twin, replace(init, params=params, buffers=buffers), batches())
    return replace(result, twin={**own.params, **own.buffers})


def _rates_of(lr: float | Tensor, params: Tree) -> float | list[Tensor]:
    """Return the rate, or that of each client (N,) in the shape and dtype of every leaf."""
    if not isinstance(lr, Tensor):
        return lr
    return [lr.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1)) for leaf in params.values()]


def _descend(weights: list[Tensor], direction: list[Tensor], rates: float | list[Tensor]) -> None:
    """Subtract the rate, common or of each client, times the direction, in place; on a CPU with the same bits."""
    if isinstance(rates, list):
        torch._foreach_addcmul_(weights, direction, rates, value=-1)
    else:
        torch._foreach_add_(weights, direction, alpha=-rates)


def _where(training: Tensor | None, new: Tree, old: Tree | None = None) -> Tree:
    """``new`` for the clients that take this step, ``old`` (or zero) for those that have taken all of theirs."""
    if training is None:
        return new
    return {
        name: torch.where(training.view(-1, *[1] * (leaf.dim() - 1)), leaf, old[name] if old else 0)
        for name, leaf in new.items()
    }
