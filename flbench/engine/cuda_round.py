"""A whole round of one run, or of several trained together, as one pure function of tensors.

Nothing in it waits for the device or depends on a number that is not known before the first round: so it can be
recorded as one CUDA graph (``cuda_graph``). Who takes part and what everybody sees are inputs (``sampling``).

Sums over clients are taken here by one product and sum over the stack; their order is the device's, so the numbers are
those of the other path within rounding, not to the bit.

Shape suffixes: N participants of all runs, n those of one chunk and run, E local steps, B batch, R runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from flbench.data.batches import Crops
from flbench.engine.cuda_graph import GraphedFunction, Recorder
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import StackedExecutor
from flbench.engine.local import ClientInit, ClientResult, ClientTask, Sgd
from flbench.engine.sampling import Prefetcher, Sampler
from flbench.engine.trainer import watched
from flbench.errors import out_of_memory
from flbench.methods.base import Tree

#: Trains a stack: what its clients share, where they begin, and for each step images and labels.
TrainStack = Callable[[ClientTask, ClientInit, Iterable[tuple[Tensor, Tensor]]], ClientResult]


#: What is drawn of the participants' batches.
BATCHES = ("rows_NEB", "crops_NEB3")


@dataclass(frozen=True)
class Member:
    """What does not change of a run from round to round.

    Attributes:
        sampler: its method, its clients, and all that is drawn.
        sgd: the local optimizer.
        autocast: dtype of mixed precision, or None.
        counts_NY: training samples of each client by class.
        param_names: of the network, in its order. ``buffer_names``: likewise.
    """

    sampler: Sampler
    sgd: Sgd
    autocast: torch.dtype | None
    counts_NY: Tensor
    param_names: Sequence[str]
    buffer_names: Sequence[str]


@dataclass(frozen=True)
class State:
    """What changes of a run: the trees of its trainer, and ``watch``, the number of rounds before it diverged."""

    x: Tree
    buffers: Tree
    server: Tree
    states: Tree
    local: Tree
    watch: Tree

    def trees(self) -> list[Tree]:
        """Them all, in the order of the constructor."""
        return [getattr(self, each.name) for each in fields(self)]


@dataclass(frozen=True)
class Outcome:
    """What a round makes of one run; ``client_params`` (leading axis S) only if it was asked for."""

    state: State
    loss: Tensor
    message_bytes: int
    client_params: Tree | None


class WholeRounds:
    """Rounds of runs that are trained together, in as few stacks as fit into memory.

    Args:
        members: of one method, norm, model, data set and shape of batches.
        executor: it trains the stacks; its chunk is halved where memory runs out.
        record: how a graph is recorded.
    """

    def __init__(self, members: Sequence[Member], executor: StackedExecutor, record: Recorder) -> None:
        self.members = tuple(members)
        self._executor, self._record = executor, record
        self._feed = Prefetcher([member.sampler for member in members], members[0].counts_NY.device)
        self._clients = sum(member.sampler.cohort_size for member in members)
        self._prepare()

    def _prepare(self) -> None:
        """Begin with stacks as large as the executor says."""
        chunk, sampler = min(self._executor.chunk, self._clients), self.members[0].sampler
        self._executor.tune(chunk, (sampler.batch_size, *sampler.images.train_MCHW.shape[1:]))
        self._function = RoundFunction(self.members, self._executor.train_stack, chunk)
        runs = f", {len(self.members)} runs" if len(self.members) > 1 else ""
        what, feedback = f"a round ({self._clients} clients{runs})", len(self.members) * len(fields(State))
        self._graphed = GraphedFunction(self._function, self._record, what, feedback)

    def step(self, rounds: Sequence[int], states: Sequence[State], *, keep_clients: bool) -> list[Outcome]:
        """Train the round after ``rounds`` are done in each run."""
        given = self._feed.next(tuple(rounds))
        trees = [given, *(tree for state in states for tree in state.trees())]
        outputs = self._call(given["rows_NEB"].shape[1], trees, keep_clients)
        losses, clients, *rest = outputs
        per_run = len(fields(State))
        return [
            Outcome(
                State(*rest[number * per_run : (number + 1) * per_run]),
                losses["loss_R"][number],
                self._function.message_bytes[number],
                _with_prefix(clients, f"{number}/") if keep_clients else None,
            )
            for number in range(len(self.members))
        ]

    def _call(self, steps: int, trees: Sequence[Tree], keep_clients: bool) -> list[Tree]:
        while True:
            try:
                if keep_clients:  # rare: not worth a graph of its own
                    return self._function(trees, keep_clients=True)
                return self._graphed(steps, trees)
            except RuntimeError as error:
                if self._function.chunk == 1 or not out_of_memory(error):
                    raise
            # Outside of the handler, whose traceback still holds what was allocated.
            self._executor.halve(self._function.chunk)
            self._graphed.forget()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            self._prepare()


class RoundFunction:
    """The round as a function of trees: what was drawn, then every run's ``State``.

    It returns the losses, the participants' parameters (an empty tree unless asked for), and every run's next state.

    Attributes:
        chunk: most clients of a stack.
        message_bytes: size of one client's message in each run; known after the first call.
    """

    def __init__(self, members: Sequence[Member], train: TrainStack, chunk: int) -> None:
        self._members, self._train, self.chunk = members, train, chunk
        self._images: DeviceData = members[0].sampler.images
        self._steps = {steps for member in members for steps in member.sampler.steps}
        self._differing = _Differing(members)
        self.message_bytes = [0] * len(members)

    def __call__(self, trees: Sequence[Tree], *, keep_clients: bool = False) -> list[Tree]:
        """One round."""
        given, *rest = trees
        per_run = len(fields(State))
        states = [State(*rest[i : i + per_run]) for i in range(0, len(rest), per_run)]
        tallies = [_Tally(state) for state in states]
        kept: list[list[Tree]] = [[] for _ in states]
        for parts in _chunks([member.sampler.cohort_size for member in self._members], self.chunk):
            finish = self._train_chunk(given, states, parts)
            for part in parts:
                own = rows_of(finish, part.in_chunk)
                tallies[part.run].add(own, given["weights_4N"][:, part.in_all])
                kept[part.run].append({name: own.params[name] for name in states[part.run].x} if keep_clients else {})
        ends = [self._end(run, states[run], tallies[run], given) for run in range(len(states))]
        losses = {"loss_R": torch.stack([tally.loss for tally in tallies])}
        clients = {f"{run}/{name}": leaf for run, own in enumerate(kept) for name, leaf in _cat(own).items()}
        return [losses, clients, *(tree for end in ends for tree in end.trees())]

    def _train_chunk(self, given: Tree, states: Sequence[State], parts: Sequence[_Part]) -> ClientResult:
        at = slice(parts[0].in_all.start, parts[-1].in_all.stop)
        start = self._start(given, states, parts, at)
        batches = batches_of(self._images, {name: given[name][at] for name in given if name in BATCHES})
        return self._train(self._task(states, parts, start, at), start, batches)

    def _start(self, given: Tree, states: Sequence[State], parts: Sequence[_Part], at: slice) -> ClientInit:
        starts = []
        for part in parts:
            member, state = self._members[part.run], states[part.run]
            cohort, count = given["cohort_N"][part.in_all], part.in_chunk.stop - part.in_chunk.start
            own = {name: leaf.index_select(0, cohort) for name, leaf in state.local.items()}
            shared = {name: leaf.expand(count, *leaf.shape) for name, leaf in {**state.x, **state.buffers}.items()}
            start = {
                "params": {name: own[name] if name in own else shared[name] for name in member.param_names},
                "buffers": {name: own[name] if name in own else shared[name] for name in member.buffer_names},
                "state": {name: leaf.index_select(0, cohort) for name, leaf in state.states.items()},
                "counts": {"counts_Y": member.counts_NY.index_select(0, cohort)},
            }
            starts.append(start)
        joined = {name: _cat([start[name] for start in starts]) for name in starts[0]}
        counts_Y = joined.pop("counts")["counts_Y"]
        return ClientInit(**joined, velocity={}, counts_Y=counts_Y, steps=self._steps_of(given, joined["params"], at))

    def _steps_of(self, given: Tree, like: Tree, at: slice) -> int | Tensor:
        """The number of steps that all clients take in every round, or each participant's own."""
        if len(self._steps) == 1:
            (steps,) = self._steps
            return steps
        own: Tensor = given["weights_4N"][3, at]
        return own.to(next(iter(like.values())).dtype)

    def _task(self, states: Sequence[State], parts: Sequence[_Part], start: ClientInit, at: slice) -> ClientTask:
        first, method = self._members[0], self._members[0].sampler.method
        broadcast = [state.server if method.broadcasts_state else {} for state in states]
        if len(self._members) == 1:
            return ClientTask(method, first.sgd, states[0].x, broadcast[0], first.autocast)
        each: dict[str, Any] = {
            "x": {name: start.params[name] for name in states[0].x},  # the beginning is x
            "server": {
                name: torch.cat([_repeated(broadcast[part.run][name], part) for part in parts]) for name in broadcast[0]
            },
            "lr": self._differing.lr_N[at],
        }
        hyperparameters = {name: leaf[at] for name, leaf in self._differing.hyperparameters.items()}
        return ClientTask(method, first.sgd, states[0].x, broadcast[0], first.autocast, each, hyperparameters)

    def _end(self, run: int, before: State, tally: _Tally, given: Tree) -> State:
        sampler = self._members[run].sampler
        participation = sampler.cohort_size / len(sampler.rows)
        x, server = sampler.method.server_step(before.x, tally.delta, tally.message, before.server, participation)
        self.message_bytes[run] = sum(leaf.numel() * leaf.element_size() for leaf in tally.message.values())
        start = sum(member.sampler.cohort_size for member in self._members[:run])
        cohort = given["cohort_N"][start : start + sampler.cohort_size]
        everyone = sampler.cohort_size == len(sampler.rows)

        def stored(old: Tree, new: Tree) -> Tree:
            return {name: new[name] if everyone else old[name].index_copy(0, cohort, new[name]) for name in old}

        local = stored(before.local, _cat(tally.stayed))
        return State(
            x=x,
            buffers=tally.buffers,
            server=server,
            states=stored(before.states, _cat(tally.states)),
            local=local,
            watch=watched(before.watch, [*x.values(), *local.values()], tally.loss),
        )


class _Differing:
    """What differs between the clients of several runs, in the order of all participants."""

    def __init__(self, members: Sequence[Member]) -> None:
        method, device = members[0].sampler.method, members[0].counts_NY.device
        images = members[0].sampler.images

        def numbers(values: Sequence[float]) -> Tensor:
            sizes = [member.sampler.cohort_size for member in members]
            each = [value for value, size in zip(values, sizes, strict=True) for _ in range(size)]
            return torch.tensor(each, dtype=images.dtype, device=device)

        settings = {f.name: [getattr(member.sampler.method, f.name) for member in members] for f in fields(method)}
        self.lr_N = numbers([member.sgd.lr for member in members])
        self.hyperparameters = {
            name: numbers(values) for name, values in settings.items() if any(value != values[0] for value in values)
        }


@dataclass(frozen=True)
class _Part:
    """Participants of one run within a chunk: their places among all participants, and in the chunk."""

    run: int
    in_all: slice
    in_chunk: slice


def _chunks(cohort_sizes: Sequence[int], chunk: int) -> Iterator[list[_Part]]:
    """Cut the participants of all runs into chunks, and each chunk by runs."""
    owners = [run for run, size in enumerate(cohort_sizes) for _ in range(size)]
    for first in range(0, len(owners), chunk):
        own = owners[first : first + chunk]
        parts = []
        for run in dict.fromkeys(own):
            begin = own.index(run)
            end = begin + own.count(run)
            parts.append(_Part(run, slice(first + begin, first + end), slice(begin, end)))
        yield parts


@dataclass
class _Tally:
    """What a run's participants add up to: weighted sums, and what stays on them, chunk by chunk."""

    before: State
    delta: Tree = field(default_factory=dict)
    buffers: Tree = field(default_factory=dict)
    message: Tree = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    states: list[Tree] = field(default_factory=list)
    stayed: list[Tree] = field(default_factory=list)

    def add(self, end: ClientResult, weights_4n: Tensor) -> None:
        """Take in the participants of one chunk."""
        share, of_delta, of_message, _ = weights_4n
        x, everything = self.before.x, {**end.params, **end.buffers}
        self.delta = _plus(self.delta, {name: _sum(of_delta, end.params[name] - leaf) for name, leaf in x.items()})
        self.buffers = _plus(self.buffers, {name: _sum(share, end.buffers[name]) for name in self.before.buffers})
        self.message = _plus(self.message, {name: _sum(of_message, leaf) for name, leaf in end.message.items()})
        self.losses.append((share * end.loss).sum())
        self.states.append({name: end.state[name] for name in self.before.states})
        self.stayed.append({name: everything[name] for name in self.before.local})

    @property
    def loss(self) -> Tensor:
        """Mean training loss, weighed by the shares of the samples."""
        return torch.stack(self.losses).sum()


def batches_of(images: DeviceData, given: Tree) -> Iterator[tuple[Tensor, Tensor]]:
    """For each step images (N, B, C, H, W) as the network sees them, and labels (N, B), from ``BATCHES``."""
    crops = None
    if "crops_NEB3" in given:
        flat = given["crops_NEB3"].transpose(0, 1).reshape(-1, 3)
        crops = Crops(flip=flat[:, 0] > 0, offset=flat[:, 1:])
    raw, labels = images.take(given["rows_NEB"].transpose(0, 1), crops)
    return ((images.prepare(pixels), own) for pixels, own in zip(raw, labels, strict=True))


def _sum(weights_n: Tensor, leaf: Tensor) -> Tensor:
    """Sum of weight times leaf over the first axis; not as a matrix product, which TF32 would round."""
    weights = weights_n.to(leaf.dtype if leaf.is_floating_point() else weights_n.dtype)
    return (weights.view(-1, *[1] * (leaf.dim() - 1)) * leaf).sum(0).to(leaf.dtype)


def _plus(total: Tree, tree: Tree) -> Tree:
    return {name: total[name] + leaf for name, leaf in tree.items()} if total else tree


def _cat(trees: Sequence[Tree]) -> Tree:
    return {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}


def _repeated(leaf: Tensor, part: _Part) -> Tensor:
    return leaf.expand(part.in_chunk.stop - part.in_chunk.start, *leaf.shape)


def rows_of(finish: ClientResult, rows: slice) -> ClientResult:
    """The ends of some clients of a stack."""

    def cut(value: Any) -> Any:
        return {name: leaf[rows] for name, leaf in value.items()} if isinstance(value, dict) else value[rows]

    return ClientResult(**{each.name: cut(getattr(finish, each.name)) for each in fields(ClientResult)})


def _with_prefix(tree: Tree, prefix: str) -> Tree:
    return {name.removeprefix(prefix): leaf for name, leaf in tree.items() if name.startswith(prefix)}
