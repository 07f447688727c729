"""One federated round as a pure function over a stack of clients, of one run or of several that are trained together.

The executors decide how the chunks of the stack are computed: one client after another in threads, stacked, or within a
recorded CUDA graph. They all call :func:`server_round`, which starts the clients, sums their results and takes the
server's step. It reads no value of a tensor on a GPU, so a graph can record it.

Clients share nothing, in one run or in several. On a CPU every run therefore has, to the bit, the numbers that it has
alone, in every executor's own chunks.

Shape suffixes: N participants of all runs, n those of a chunk (or of one run's part of it), Y classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from flbench.config.schedules import CONSTANT
from flbench.engine.clients import ChunkJob, ClientInit, ClientResult, ClientTask, Train, map_tensors
from flbench.engine.device_data import LeavingBatches, OwnBatch, StackedBatches
from flbench.engine.hooks import own_hooks
from flbench.engine.run import Broadcast, RoundInputs, Run, own_batches
from flbench.engine.tree_sums import add_changes, add_weighted, is_averaged, joined_trees, tree_bytes
from flbench.engine.watch import watched
from flbench.methods.base import Method, ServerContext, Tree, overrides, tmap
from flbench.sums import sum_in_order
from flbench.tensor_streams import Random, client_keys, server_key

#: The start of the names of a second set of weights among what stays on the clients.
TWIN = "twin/"


@dataclass(frozen=True)
class RunState:
    """What the rounds of a run change.

    Attributes:
        x: shared parameters, in any layout. ``buffers``: shared buffers. ``server``: the method's server state.
        states: the method's client states; ``local``: parameters and buffers that stay on the clients, those of a
            second set of weights with the prefix ``TWIN``; ``velocity``: what their optimizers keep over rounds. Every
            leaf of these has one row for each client of the run.
        watch: the number of rounds before the run diverged (``watch.watched``).
    """

    x: Tree
    buffers: Tree
    server: Tree
    states: Tree
    local: Tree
    velocity: Tree
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
        client_params: the server's parameters plus each participant's change (leading axis n); None unless requested.
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

    Attributes:
        runs: the runs.
        drawn: the participants of each run in a round, where the numbers vary.
    """

    runs: tuple[Run, ...]
    drawn: tuple[int, ...] | None = None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Participants of each run."""
        return self.drawn or tuple(run.cohort_size for run in self.runs)

    def in_round(self, inputs: RoundInputs) -> RunGroup:
        """Return the group with the participants of a round."""
        return self if inputs.sizes in (None, self.sizes) else RunGroup(self.runs, inputs.sizes)

    @cached_property
    def common_steps(self) -> int | None:
        """The number of local steps that all clients of all runs take in every round; None if there is none."""
        if any(run.draw_steps is not None for run in self.runs):
            return None
        every = {steps for run in self.runs for steps in run.steps}
        return every.pop() if len(every) == 1 else None

    @cached_property
    def any_place(self) -> bool:
        """Whether clients have the same bits at every place of a stack."""
        return all(run.any_place for run in self.runs)

    @cached_property
    def has_client_hooks(self) -> bool:
        """Whether the method changes the local training."""
        methods = [method for method in (self.runs[0].method, self.runs[0].twin) if method is not None]
        return any(own_hooks(type(method)) for method in methods)

    @property
    def dtype(self) -> torch.dtype:
        """That of the networks."""
        return self.runs[0].setup.images.dtype

    @cached_property
    def hyperparameters(self) -> dict[str, Tensor]:
        """Each participant's value (N,) of the method's fields in which the runs differ."""
        return self._differing([run.method for run in self.runs])

    @cached_property
    def hyperparameters_of_twins(self) -> dict[str, Tensor]:
        """The same of the fields of the methods that train the second sets of weights."""
        twins = [run.twin for run in self.runs if run.twin is not None]
        return self._differing(twins) if twins else {}

    def _differing(self, methods: Sequence[Method]) -> dict[str, Tensor]:
        found = {}
        for field in fields(methods[0]):
            values = [getattr(method, field.name) for method in methods]
            if len(set(values)) > 1:
                each = [value for value, size in zip(values, self.sizes, strict=True) for _ in range(size)]
                found[field.name] = torch.tensor(each, dtype=self.dtype, device=self.runs[0].counts_NY.device)
        return found

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


def server_round(
    group: RunGroup, states: Sequence[RunState], inputs: RoundInputs, train: Train, keep_clients: Sequence[bool]
) -> list[RoundOutcome]:
    """Return what one round makes of each run.

    Args:
        group: the runs.
        states: their states. The rows of ``states``, ``local`` and ``velocity`` are overwritten in place, chunk by
            chunk, which saves a copy of all clients' states; everything else of the outcome is new.
        inputs: who takes part, with which weights and batches.
        train: trains the participants.
        keep_clients: for each run, whether the outcome holds what its participants sent.
    """
    start = RoundStart(group, states, inputs)
    tallies = [_Tally(*own) for own in zip(group.runs, states, start.sent, keep_clients, strict=True)]
    for positions, result in train(sum(group.sizes), start.job):  # exact: whole numbers
        parts = group.parts(positions)
        for part in parts:
            own = result if len(parts) == 1 else map_tensors(result, itemgetter(part.in_chunk))
            tallies[part.run].add(own, inputs.cohort_N[part.in_all], inputs.weights_5N[:, part.in_all])
    return [tally.close(start.round_of(number)) for number, tally in enumerate(tallies)]


class RoundStart:
    """The start of a round: the runs, their states, what is drawn for the round, and what the servers send."""

    def __init__(self, group: RunGroup, states: Sequence[RunState], inputs: RoundInputs) -> None:
        self._group, self._states, self._inputs = group, states, inputs
        pairs = zip(group.runs, states, strict=True)
        self.sent = [Broadcast.of(run, state.x, state.server) for run, state in pairs]

    def round_of(self, run: int) -> int | Tensor:
        """Return the number of a run's round: plain where the host knows it."""
        if self._inputs.rounds is not None:
            return self._inputs.rounds[run]
        return self._inputs.round_N[sum(self._group.sizes[:run])].to(self._group.dtype)  # exact: whole numbers

    def job(self, positions: slice) -> ChunkJob:
        """Return the local training of the participants at these positions."""
        parts = self._group.parts(positions)
        init = self._init(parts, positions)
        batches, order = self._batches(positions)
        own: Iterable[OwnBatch] = ()
        if self._group.runs[0].own_NM is not None:
            members = [(self._group.runs[part.run], self._inputs.cohort_N[part.in_all]) for part in parts]
            own = own_batches(members, init.counts_Y.sum(-1), known=self._inputs.rounds is not None)
        task, twin = self._task(parts, positions, init), None
        twins = [method for part in parts if (method := self._group.runs[part.run].twin) is not None]
        if twins:
            numbers = _differing(self._group.hyperparameters_of_twins, twins, positions)
            twin = replace(task, method=twins[0], hyperparameters=numbers, extra=frozenset())
        job = ChunkJob(task, init, batches, own, twin)
        return job if order is None else job.ordered(order)

    def _batches(self, positions: slice) -> tuple[StackedBatches | LeavingBatches, Tensor | None]:
        """The participants' batches, and the order in which they are: by falling numbers of steps, where that helps."""
        images, drawn = self._group.runs[0].setup.images, self._inputs.batches(positions)
        steps_n = [] if self._inputs.steps_N is None else self._inputs.steps_N[positions]
        if len(set(steps_n)) < 2 and self._group.runs[0].setup.executor.name == "native":
            return LeavingBatches(images, drawn, steps_n), None  # compiled functions gather by themselves
        if len(set(steps_n)) < 2 or not self._group.any_place:
            return images.stack(drawn), None
        order = sorted(range(len(steps_n)), key=steps_n.__getitem__, reverse=True)
        order_n = torch.tensor(order)
        drawn = {name: leaf.index_select(0, order_n) for name, leaf in drawn.items()}
        return LeavingBatches(images, drawn, [steps_n[at] for at in order]), order_n

    def _init(self, parts: Sequence[_Part], positions: slice) -> ClientInit:
        """The participants' state before training: what the server sends, and what stayed on them."""
        group, inputs = self._group, self._inputs
        each = []
        for part in parts:
            run, state, cohort_n = group.runs[part.run], self._states[part.run], inputs.cohort_N[part.in_all]
            shared, size = {**self.sent[part.run].start, **state.buffers}, len(part)
            leaves = {name: leaf.expand(size, *leaf.shape) for name, leaf in shared.items()}
            leaves |= {name: leaf.index_select(0, cohort_n) for name, leaf in state.local.items()}
            trees: dict[str, Tree] = {
                "params": {name: leaves[name] for name in (*run.setup.params, *run.extra)},
                "twin": {name.removeprefix(TWIN): leaf for name, leaf in leaves.items() if name.startswith(TWIN)},
                "buffers": {name: leaves[name] for name in run.setup.buffers},
                "state": {name: leaf.index_select(0, cohort_n) for name, leaf in state.states.items()},
                "velocity": {name: leaf.index_select(0, cohort_n) for name, leaf in state.velocity.items()},
                "numbers": {"counts_Y": run.counts_NY.index_select(0, cohort_n)},
            }
            if group.has_client_hooks:
                trees["numbers"]["keys"] = client_keys(run.setup.seed, cohort_n, self.round_of(part.run))
            each.append(trees)
        joined: dict[str, Any] = {name: joined_trees([trees[name] for trees in each]) for name in each[0]}
        numbers: dict[str, Any] = joined.pop("numbers")
        share, _, _, own_steps, relative_size = inputs.weights_5N[:, positions].unbind()
        for name in group.runs[0].shares:
            joined["buffers"][name] = share.to(group.dtype)
        relative_size = relative_size.to(group.dtype)
        known = {group.common_steps} if inputs.steps_N is None else set(inputs.steps_N[positions])
        common = known.pop() if len(known) == 1 else None
        # One number for all is plain: hooks then compute as for one client.
        steps = own_steps.to(group.dtype) if common is None else common
        return ClientInit(**joined, **numbers, steps=steps, relative_size=relative_size)

    def _task(self, parts: Sequence[_Part], positions: slice, init: ClientInit) -> ClientTask:
        """What the participants of a chunk share, and what differs between those of several runs."""
        group, inputs = self._group, self._inputs
        run, broadcast = group.runs[parts[0].run], self.sent[parts[0].run]
        rounds = [self.round_of(part.run) for part in parts]
        each: dict[str, Any] = {}
        sgd = run.setup.sgd
        if inputs.rounds is not None:
            sgd = sgd.in_round(inputs.rounds[parts[0].run])
        elif sgd.schedule != CONSTANT:
            each = {"lr": inputs.lr_N[positions].to(group.dtype)}
        if len(parts) > 1:
            servers = [
                {name: leaf.expand(len(part), *leaf.shape) for name, leaf in self.sent[part.run].server.items()}
                for part in parts
            ]
            x = {name: init.params[name] for name in broadcast.x}
            each = {"x": x, "server": joined_trees(servers), "lr": inputs.lr_N[positions].to(group.dtype)}
            if inputs.rounds is None or len(set(rounds)) > 1:
                each["round"] = inputs.round_N[positions].to(group.dtype)
        return ClientTask(
            method=run.method,
            sgd=sgd,
            x=broadcast.start,
            server=broadcast.server,
            autocast=run.setup.autocast,
            round=rounds[0],
            head=run.head,
            frozen=run.frozen,
            extra=frozenset(run.extra),
            unshared=run.unshared,
            observation=run.observation,
            each=each,
            hyperparameters=_differing(
                group.hyperparameters, [group.runs[part.run].method for part in parts], positions
            ),
        )


def _differing(values: Tree, methods: Sequence[Method], positions: slice) -> Tree:
    """The fields' values (n,) for the participants of a chunk, as far as its runs' methods differ in them."""
    return {
        name: leaf[positions] for name, leaf in values.items() if len({getattr(method, name) for method in methods}) > 1
    }


class _Tally:
    """The weighted sums of one run's participants, and what stays on them.

    Of a buffer of integers or booleans (batch normalization counts its batches) it keeps the largest value among the
    participants: a mean would have to be rounded.

    It holds every participant's change only if the method aggregates them itself or the caller requests them.
    """

    def __init__(self, run: Run, state: RunState, sent: Broadcast, keep_clients: bool) -> None:
        self._run, self._state, self._sent, self._keep = run, state, sent, keep_clients
        self._aggregates = overrides(type(run.method), "aggregate")
        # Hooks add in the order of memory. Without them the layout stays: changing it takes longer than all else here.
        self._any_layout = not any(overrides(type(run.method), at) for at in ("broadcast", "aggregate", "server_step"))
        self._changes: list[Tree] = []
        self._gathered: list[Tree] = []
        self._delta = {name: torch.zeros_like(sent.start[name]) for name in state.x}
        moving = {name: leaf for name, leaf in state.buffers.items() if name not in run.constants}
        self._buffers = {name: torch.zeros_like(leaf) for name, leaf in moving.items() if is_averaged(leaf)}
        self._largest = moving.keys() - self._buffers.keys()
        self._counters: Tree = {}
        self._message: Tree = {}
        self._losses: list[Tensor] = []

    def add(self, result: ClientResult, cohort_n: Tensor, weights_5n: Tensor) -> None:
        """Add the next participants, in ascending order."""
        state = self._state
        share, of_delta, of_message, *_ = weights_5n.unbind()
        if not self._message:
            self._message = {name: torch.zeros_like(leaf[0]) for name, leaf in result.message.items()}
        changes = result.sent
        if self._keep or self._aggregates:
            changes = changes or {name: result.params[name] - leaf for name, leaf in self._sent.start.items()}
            self._changes.append(changes)
        if self._aggregates:
            counts_nY = self._run.counts_NY.index_select(0, cohort_n)
            seen = {"weights": of_delta, "losses": result.loss, "counts": counts_nY}
            self._gathered.append(seen | {f"message/{name}": leaf for name, leaf in result.message.items()})
        elif changes:
            add_weighted(self._delta, changes, of_delta)
        else:
            add_changes(self._delta, result.params, self._sent.start, of_delta)
        add_weighted(self._buffers, result.buffers, share)
        for name in self._largest:
            largest = result.buffers[name].amax(0)
            self._counters[name] = torch.maximum(self._counters.get(name, largest), largest)
        add_weighted(self._message, result.message, of_message)
        self._losses.append(share * result.loss)
        after = {**result.params, **result.buffers, **{TWIN + name: leaf for name, leaf in result.twin.items()}}
        kept = (state.states, result.state), (state.local, after), (state.velocity, result.velocity)
        for stored, new in kept:
            for name, leaf in stored.items():
                leaf.index_copy_(0, cohort_n, new[name])

    def close(self, round: int | Tensor) -> RoundOutcome:
        """Take the server's step."""
        state, run = self._state, self._run
        changes = joined_trees(self._changes) if self._changes else {}
        x = self._sent.start if self._any_layout else state.x
        delta = self._delta if self._any_layout else tmap(Tensor.contiguous, self._delta)
        # A weighted mean of equal numbers may differ from them in the last bit, so constants are copied.
        averaged = self._buffers | self._counters
        buffers = {name: averaged[name] if name in averaged else leaf.clone() for name, leaf in state.buffers.items()}
        for update in run.buffer_updates:
            buffers |= update(state.buffers, buffers)
        data = run.server_data and replace(run.server_data, buffers=buffers)
        random = Random(server_key(run.setup.seed, round) if run.server_draws else 0)
        loss_N, clients = torch.cat(self._losses), len(run.rows)
        context = ServerContext(len(loss_N) / clients, round, run.head, random, clients, self._sent.x, data)
        if self._aggregates and state.x:
            seen = joined_trees(self._gathered)
            messages = {name: seen[f"message/{name}"] for name in self._message}
            context = replace(context, losses_n=seen["losses"], counts_nY=seen["counts"], messages_n=messages)
            delta = run.method.aggregate(changes, seen["weights"].to(run.setup.images.dtype), context)
        x, server = run.method.server_step(x, delta, self._message, state.server, context)
        # On a CPU from the first to the last, as ``add_weighted`` adds.
        loss = loss_N.new_full((), sum_in_order(loss_N.tolist())) if loss_N.is_cpu else loss_N.sum()
        watch = watched(state.watch, [*x.values(), *state.local.values()], loss)
        return RoundOutcome(
            state=RunState(x, buffers, server, state.states, state.local, state.velocity, watch),
            loss=loss,
            message_bytes=tree_bytes(self._message),
            client_params=tmap(torch.add, tmap(Tensor.contiguous, state.x), changes) if self._keep else None,
        )
