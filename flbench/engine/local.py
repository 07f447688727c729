"""The local training of one client, or of a stack of clients, as one pure function.

Both use the same code: a hook of the method is *lifted*, by the identity for one client, by ``over_clients`` for a
stack. Clients share nothing, so the gradient of the sum of their losses is each client's own gradient.

Shape suffixes: N clients (absent for one), E local steps, B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby, tee
from operator import itemgetter

import torch
from torch import Tensor

from flbench.engine.class_statistics import class_statistics
from flbench.engine.clients import ChunkJob, ClientInit, ClientResult, ClientTask, map_tensors
from flbench.engine.device_data import LeavingBatches, OwnBatch
from flbench.engine.gradients import Passes, autocast, evaluating, gradient_of
from flbench.engine.hooks import Lift, LiftedHooks
from flbench.engine.observed import observed
from flbench.engine.own_training import OwnTraining
from flbench.engine.phases import aligned
from flbench.engine.tree_sums import joined_trees
from flbench.methods.base import Tree, tmap
from flbench.models.layers import at_least_float

#: The network's input of a local step, labels, the sizes of partial batches, and the key of the step's masks.
Step = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Steps = Iterable[Step]


@torch.no_grad()
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
            do not affect its result, and where the first axis becomes shorter, the last clients have no further ones.
            Third, for a stack with partial batches, the number of samples (N,) of each batch.
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
        with torch.enable_grad():
            params, loss = lifted.train(params, training, training.forward)
    else:
        params, buffers, velocity, loss = _steps(passes, lift, lifted, task, start, batches, buffers, frozen)
    if lifted.active:
        lifted.begin(-1)
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
    number_N, leave = start.steps, start.leave_after
    native = passes.native if task.sgd.is_plain and not lifted.active else None
    if (
        native
        and native.convolutions is None
        and isinstance(batches, LeavingBatches)
        and batches.images.plain_source is not None
    ):
        params = {name: leaf.clone(memory_format=torch.contiguous_format) for name, leaf in start.params.items()}
        rates = task.each.get("lr", task.sgd.lr)
        losses = native.local_steps.train(params, {**buffers, **frozen}, batches, rates)
        return params, buffers, start.velocity, losses / number_N
    now = _Moved(tmap(torch.clone, start.params), buffers, tmap(torch.clone, start.velocity), {})
    left: list[_Moved] = []  # of the clients that have left the stack
    for clients, steps in groupby(enumerate(batches), lambda step: len(step[1][1]) if leave else 1):
        if leave and clients < len(start.counts_Y):
            left.insert(0, now.of(slice(clients, None)))
            stay = itemgetter(slice(clients))
            now, frozen = now.of(slice(clients)), tmap(stay, frozen)
            start, task = map_tensors(start, stay), task.mapped(stay)
            lifted = LiftedHooks(task.method, lift, task, start)
        everyones = leave[clients - 1] if leave else 0
        now = _steps_together(passes, lift, lifted, task, start, now, frozen, steps, everyones)
    kept = ("params", "buffers", "velocity", "loss")
    params, buffers, velocity, loss = (joined_trees([getattr(one, name) for one in (now, *left)]) for name in kept)
    return params, buffers, velocity, loss["loss"] / number_N


@dataclass(frozen=True)
class _Moved:
    """What local steps change.

    Attributes:
        params: all parameters. ``buffers``: those that change. ``velocity``: state of the optimizer.
        loss: the sum over the steps, if there were some.
        taken: how many there were, of each parameter where they differ.
    """

    params: Tree
    buffers: Tree
    velocity: Tree
    loss: Tree
    taken: int | Tree = 0

    def of(self, clients: slice) -> _Moved:
        """Return those of some clients of a stack."""
        own = (tmap(itemgetter(clients), tree) for tree in (self.params, self.buffers, self.velocity, self.loss))
        taken = self.taken
        if not isinstance(taken, int):
            taken = {name: count[clients] if count.dim() else count for name, count in taken.items()}
        params, buffers, velocity, loss = own
        return _Moved(params, buffers, velocity, loss, taken)


def _steps_together(
    passes: Passes,
    lift: Lift,
    lifted: LiftedHooks,
    task: ClientTask,
    start: ClientInit,
    now: _Moved,
    frozen: Tree,
    batches: Iterable[tuple[int, Step]],
    everyones: int,
) -> _Moved:
    """Return what some steps make of a client, or of a stack from which no client leaves; parameters in place.

    All clients take the first ``everyones`` of the steps of the round; the others are taken by those whose number is
    higher.
    """
    sgd, names, active = task.sgd, list(start.params), lifted.active
    clips, coupled_decay, has_state = sgd.clips, sgd.coupled_decay, sgd.has_state
    params, buffers, velocity, taken = now.params, now.buffers, now.velocity, now.taken
    weights = list(params.values())
    gradient = gradient_of(passes, lifted, task.autocast)
    gradient_there = gradient_of(passes, lifted, task.autocast) if lifted.perturbs else None
    rates = _rates_of(task.each.get("lr", sgd.lr), params)
    number_N = start.steps if isinstance(start.steps, Tensor) else None
    notes, takes = [], []  # takes: which clients (N,) take each step; None if all do
    for step, (images, labels, sizes, key) in batches:
        if active:
            lifted.begin(step)
        training = None if number_N is None or step < everyones else step < number_N
        takes.append(training)
        buffers_before = buffers if training is None else tmap(torch.clone, buffers)
        batch = images, (labels, sizes), gradient.taught(images) if lifted.teachers else {}
        seen = {**buffers, **frozen} if frozen else buffers
        if key is not None:
            seen = {**seen, **{name: key ^ number for name, number in passes.mask_keys.items()}}
        phase = lifted.phase(names) if lifted.has_rates else None
        note, grads = gradient(lifted.perturbed(params, {}) if lifted.moves else params, seen, *batch)
        if phase:
            grads = phase.of_gradient(grads)
        notes.append(note)
        if gradient_there is not None:
            _, grads = gradient_there(lifted.perturbed(params, grads), tmap(torch.clone, seen), *batch)
            if phase:
                grads = phase.of_gradient(grads)
        if clips:
            grads = lift(partial(sgd.clipped, head=task.head))(grads, params)
        if coupled_decay:
            leaves = torch._foreach_add([grads[name] for name in names], weights, alpha=coupled_decay)
            grads = dict(zip(names, leaves, strict=True))
        direction = lifted.direction(params, grads) if active else grads
        if has_state:
            # The first direction becomes the state; weights and gradients are overwritten.
            direction = direction if velocity else tmap(torch.clone, direction)
            taken = phase.counted(taken, params) if phase else step + 1
            direction, moved = sgd.advance(direction, velocity, params, taken)
            moved = phase.of_state(moved, velocity) if phase else moved
            velocity = moved if training is None else _where(training, moved, velocity)
        change = lifted.step(params, direction) if active else direction
        if phase:
            change = phase.of_step(change)
        if training is not None:
            change, buffers = _where(training, change), _where(training, buffers, buffers_before)
        _descend(weights, [change[name] for name in names], rates)  # a method may give them another order
    every = zip(takes, gradient.losses(notes), strict=True)
    losses = [loss if training is None else _where(training, {"loss": loss})["loss"] for training, loss in every]
    loss = reduce(torch.add, [*now.loss.values(), *losses])  # one by one: zeros of steps not taken change no bit
    return _Moved(params, buffers, velocity, {"loss": loss}, taken)


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
    return [aligned(lr, leaf).to(leaf.dtype) for leaf in params.values()]


def _descend(weights: list[Tensor], direction: list[Tensor], rates: float | list[Tensor]) -> None:
    """Subtract the rate, common or of each client, times the direction, in place; on a CPU with the same bits."""
    if isinstance(rates, list):
        torch._foreach_addcmul_(weights, direction, rates, value=-1)
    else:
        torch._foreach_add_(weights, direction, alpha=-rates)


def _where(training: Tensor, new: Tree, old: Tree | None = None) -> Tree:
    """``new`` for the clients that take this step, ``old`` (or zero) for those that have taken all of theirs."""
    return {name: torch.where(aligned(training, leaf), leaf, old[name] if old else 0) for name, leaf in new.items()}
