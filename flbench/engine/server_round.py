"""One federated round as a pure function over a stack of clients, of one run or of several that are trained together.

The executors decide how the chunks of the stack are computed: one client after another in threads, stacked, or within a
recorded CUDA graph. They all call :func:`server_round`, which starts the clients, sums their results and takes the
server's step. It reads no value of a tensor on a GPU, so a graph can record it.

Clients share nothing, in one run or in several. On a CPU every run therefore has, to the bit, the numbers that it has
alone, in every executor's own chunks.

Shape suffixes: N participants of all runs, n those of a chunk (or of one run's part of it), Y classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from math import isfinite
from operator import add, itemgetter
from typing import Any

import torch
from torch import Tensor

from flbench.engine.local import ChunkJob, ClientInit, ClientResult, ClientTask, Train, map_tensors
from flbench.engine.run import RoundInputs, Run
from flbench.methods.base import Tree


@dataclass(frozen=True)
class RunState:
    """What the rounds of a run change.

    Attributes:
        x: shared parameters. ``buffers``: shared buffers. ``server``: the method's server state.
        states: the method's client states; ``local``: parameters and buffers that stay on the clients. Every leaf of
            both has one row for each client of the run.
        watch: the number of rounds before the run diverged (``trainer.watched``).
    """

    x: Tree
    buffers: Tree
    server: Tree
    states: Tree
    local: Tree
    watch: Tree

    def trees(self) -> list[Tree]:
        """All of them, in the order of the constructor."""
        return [getattr(self, each.name) for each in fields(self)]


@dataclass(frozen=True)
class RoundOutcome:
    """What a round makes of one run.

    Attributes:
        loss: 0-d, float64: the clients' mean training loss, weighted by their shares of the samples.
        message_bytes: size of one client's message.
        client_params: what the participants sent (leading axis n); None unless requested.
    """

    state: RunState
    loss: Tensor
    message_bytes: int
    client_params: Tree | None


@dataclass(frozen=True)
class _Part:
    """Participants of one run within a chunk: their positions among all participants, and in the chunk."""

    run: int
    in_all: slice
    in_chunk: slice

    def __len__(self) -> int:
        return int(self.in_chunk.stop - self.in_chunk.start)


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs whose participants are trained side by side: of one method, norm, model, data set and shape of batches.

    They may differ in seed, learning rate, clients and participation, and in the method's numbers.
    """

    runs: tuple[Run, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Participants of each run."""
        return [run.cohort_size for run in self.runs]

    @cached_property
    def all_steps(self) -> frozenset[int]:
        """The numbers of local steps that any client of any run takes."""
        return frozenset(steps for run in self.runs for steps in run.steps)

    @cached_property
    def lr_N(self) -> Tensor:
        """Each participant's learning rate."""
        return self._of_participants([run.setup.sgd.lr for run in self.runs])

    @cached_property
    def hyperparameters(self) -> dict[str, Tensor]:
        """Each participant's value (N,) of the method's fields in which the runs differ."""
        names = [field.name for field in fields(self.runs[0].method)]
        values = {name: [getattr(run.method, name) for run in self.runs] for name in names}
        return {name: self._of_participants(own) for name, own in values.items() if len(set(own)) > 1}

    def parts(self, positions: slice) -> list[_Part]:
        """Cut a chunk of the participants by runs."""
        parts, first = [], 0
        for number, size in enumerate(self.sizes):
            begin, end = max(first, positions.start), min(first + size, positions.stop)
            if begin < end:
                in_chunk = slice(begin - positions.start, end - positions.start)
                parts.append(_Part(number, slice(begin, end), in_chunk))
            first += size
        return parts

    def _of_participants(self, values: Sequence[float]) -> Tensor:
        """Repeat each run's value for its participants."""
        each = [value for value, size in zip(values, self.sizes, strict=True) for _ in range(size)]
        return torch.tensor(each, dtype=self.runs[0].setup.images.dtype, device=self.runs[0].counts_NY.device)


def server_round(
    group: RunGroup, states: Sequence[RunState], inputs: RoundInputs, train: Train, keep_clients: Sequence[bool]
) -> list[RoundOutcome]:
    """Return what one round makes of each run.

    Args:
        group: the runs.
        states: their states. The rows of ``states`` and ``local`` are overwritten in place, chunk by chunk, which saves
            a copy of all clients' states; everything else of the outcome is new.
        inputs: who takes part, with which weights and batches.
        train: trains the participants.
        keep_clients: for each run, whether the outcome holds what its participants sent.
    """
    tallies = [_Tally(run, state, keep) for run, state, keep in zip(group.runs, states, keep_clients, strict=True)]
    for positions, result in train(sum(group.sizes), lambda at: chunk_job(group, states, inputs, at)):
        parts = group.parts(positions)
        for part in parts:
            own = result if len(parts) == 1 else map_tensors(result, itemgetter(part.in_chunk))
            tallies[part.run].add(own, inputs.cohort_N[part.in_all], inputs.weights_4N[:, part.in_all])
    return [tally.close() for tally in tallies]


def chunk_job(group: RunGroup, states: Sequence[RunState], inputs: RoundInputs, positions: slice) -> ChunkJob:
    """Return the local training of the participants at these positions."""
    parts = group.parts(positions)
    init = _init(group, states, inputs, parts, positions)
    batches = group.runs[0].setup.images.stack(inputs.batches(positions))
    return ChunkJob(_task(group, states, parts, positions, init), init, batches)


def _init(
    group: RunGroup, states: Sequence[RunState], inputs: RoundInputs, parts: Sequence[_Part], positions: slice
) -> ClientInit:
    """The participants' state before training: what the server sends, and what stayed on them."""
    each = []
    for part in parts:
        run, state, cohort_n = group.runs[part.run], states[part.run], inputs.cohort_N[part.in_all]
        leaves = {name: leaf.expand(len(part), *leaf.shape) for name, leaf in {**state.x, **state.buffers}.items()}
        leaves |= {name: leaf.index_select(0, cohort_n) for name, leaf in state.local.items()}
        trees = {
            "params": {name: leaves[name] for name in run.setup.params},
            "buffers": {name: leaves[name] for name in run.setup.buffers},
            "state": {name: leaf.index_select(0, cohort_n) for name, leaf in state.states.items()},
            "counts": {"counts_Y": run.counts_NY.index_select(0, cohort_n)},
        }
        each.append(trees)
    joined = {name: _cat([trees[name] for trees in each]) for name in each[0]}
    counts_Y = joined.pop("counts")["counts_Y"]
    known = set(inputs.steps_N[positions]) if inputs.steps_N is not None else group.all_steps
    steps: int | Tensor
    if len(known) == 1:
        (steps,) = known  # a plain number: hooks then compute as for one client
    else:
        steps = inputs.weights_4N[3, positions].to(next(iter(joined["params"].values())).dtype)
    return ClientInit(**joined, velocity={}, counts_Y=counts_Y, steps=steps)


def _task(
    group: RunGroup, states: Sequence[RunState], parts: Sequence[_Part], positions: slice, init: ClientInit
) -> ClientTask:
    """What the participants of a chunk share, and what differs between those of several runs."""
    first, x = group.runs[parts[0].run], states[parts[0].run].x
    broadcast = [states[part.run].server if first.method.broadcasts_state else {} for part in parts]
    each: dict[str, Any] = {}
    hyperparameters = {}
    if len(parts) > 1:
        servers = [
            {name: leaf.expand(len(part), *leaf.shape) for name, leaf in own.items()}
            for own, part in zip(broadcast, parts, strict=True)
        ]
        each = {"x": {name: init.params[name] for name in x}, "server": _cat(servers), "lr": group.lr_N[positions]}
        for name, leaf in group.hyperparameters.items():
            if len({getattr(group.runs[part.run].method, name) for part in parts}) > 1:
                hyperparameters[name] = leaf[positions]
    return ClientTask(first.method, first.setup.sgd, x, broadcast[0], first.setup.autocast, each, hyperparameters)


class _Tally:
    """The weighted sums of one run's participants, and what stays on them."""

    def __init__(self, run: Run, state: RunState, keep_clients: bool) -> None:
        self._run, self._state = run, state
        self._kept: list[Tree] | None = [] if keep_clients else None
        self._delta = {name: torch.zeros_like(leaf) for name, leaf in state.x.items()}
        self._buffers = {name: torch.zeros_like(leaf) for name, leaf in state.buffers.items()}
        self._message: Tree = {}
        self._losses: list[Tensor] = []

    def add(self, result: ClientResult, cohort_n: Tensor, weights_4n: Tensor) -> None:
        """Add the next participants, in ascending order."""
        state = self._state
        share, of_delta, of_message, _ = weights_4n
        if not self._message:
            self._message = {name: torch.zeros_like(leaf[0]) for name, leaf in result.message.items()}
        add_weighted(self._delta, {name: result.params[name] - leaf for name, leaf in state.x.items()}, of_delta)
        add_weighted(self._buffers, result.buffers, share)
        add_weighted(self._message, result.message, of_message)
        self._losses.append(share * result.loss)
        after = {**result.params, **result.buffers}
        for stored, new in ((state.states, result.state), (state.local, after)):
            for name, leaf in stored.items():
                leaf.index_copy_(0, cohort_n, new[name])
        if self._kept is not None:
            self._kept.append({name: result.params[name] for name in state.x})

    def close(self) -> RoundOutcome:
        """Take the server's step."""
        state, run = self._state, self._run
        participation = run.cohort_size / len(run.rows)
        x, server = run.method.server_step(state.x, self._delta, self._message, state.server, participation)
        loss_N = torch.cat(self._losses)
        # On a CPU from the first to the last, as ``add_weighted`` adds.
        loss = loss_N.new_full((), reduce(add, loss_N.tolist(), 0.0)) if loss_N.is_cpu else loss_N.sum()
        watch = watched(state.watch, [*x.values(), *state.local.values()], loss)
        return RoundOutcome(
            state=RunState(x, self._buffers, server, state.states, state.local, watch),
            loss=loss,
            message_bytes=tree_bytes(self._message),
            client_params=None if self._kept is None else _cat(self._kept),
        )


def add_weighted(total: Tree, tree: Tree, weights_n: Tensor) -> None:
    """Add sum_n weight_n * leaf_n to every leaf of ``total``, in place.

    On a CPU clients are added one by one in ascending order, so that neither the executor nor the place where chunks
    are cut changes a bit. On a GPU a product and a sum over the chunk need fewer kernels; they are no matrix product,
    which TF32 would round.
    """
    if not total:
        return
    if weights_n.is_cpu:
        sums, leaves = list(total.values()), [tree[name].unbind() for name in total]
        for weight, of_client in zip(weights_n.tolist(), zip(*leaves, strict=True), strict=True):
            torch._foreach_add_(sums, of_client, alpha=weight)
        return
    for name, leaf in total.items():
        leaf.add_(weighted_sum(tree[name], weights_n))


def weighted_sum(leaf_n: Tensor, weights_n: Tensor) -> Tensor:
    """Return the sum of weight times leaf over the first axis, in the leaf's dtype."""
    weights = weights_n.to(leaf_n.dtype) if leaf_n.is_floating_point() else weights_n
    return (weights.view(-1, *[1] * (leaf_n.dim() - 1)) * leaf_n).sum(0).to(leaf_n.dtype)


def watched(watch: Tree, leaves: Sequence[Tensor], loss: Tensor) -> Tree:
    """Return ``watch`` with one more round, unless the loss or a parameter is, or was earlier, not finite.

    Args:
        watch: ``finite``, whether all was finite so far, and ``rounds``, how many rounds were.
        leaves: all parameters after the round.
        loss: of the round, 0-d.
    """
    totals = [leaf.sum() for leaf in leaves]
    if loss.is_cpu:  # reading numbers takes half the time of torch's operations
        numbers: list[Any] = [total.tolist() for total in (*totals, loss)]
        finite = watch["finite"] & all(map(isfinite, numbers))
    else:
        finite = watch["finite"] & torch.isfinite(torch.stack(totals)).all() & torch.isfinite(loss)
    return {"finite": finite, "rounds": watch["rounds"] + finite}


def tree_bytes(tree: Tree) -> int:
    """Return the size of all leaves."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.values())


def _cat(trees: Sequence[Tree]) -> Tree:
    return trees[0] if len(trees) == 1 else {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}
