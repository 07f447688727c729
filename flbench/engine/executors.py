"""Two ways to run the same local training for many clients: one by one in a pool, or stacked.

Both yield finished clients in client order, in chunks with a leading client axis, and the server sums in that order.
One client's training never depends on the others or on the pool's size: so neither does a bit of the result.

Shape suffixes: N clients of a chunk, E local steps, B batch, M images of an evaluation batch, Y classes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import vmap

from flbench.engine.conv_tuner import ConvTuner
from flbench.engine.cuda_graph import GraphedFunction, Recorder
from flbench.engine.device_data import ClientBatches, DeviceData
from flbench.engine.local import ClientInit, ClientResult, ClientTask, autocast, local_train
from flbench.errors import out_of_memory
from flbench.methods.base import Tree, tmap
from flbench.models.network import Forward, pure_forward, stacked_forward

_log = logging.getLogger(__name__)

#: Most clients trained as one stack: as many as a core's cache likes. On MLPs of 9 to 25 thousand weights 20 to 40 were
#: fastest, and 10 or 90 took a tenth to a third longer. On a CPU the number changes no bit.
CHUNK = 30

#: Images in one forward pass of an evaluation: of a stack, and on one core, in whose cache they are to fit.
EVALUATION_BATCH = 500
CORE_EVALUATION_BATCH = 100


@dataclass(frozen=True)
class Client:
    """One client's round, not yet begun.

    Attributes:
        task: what it shares with the other clients of its run.
        start: makes its beginning.
        batch: draws what it sees; the numbers of steps may differ between clients.
        images: the data set that its rows are of: one for all clients that are trained together.
    """

    task: ClientTask
    start: Callable[[], ClientInit]
    batch: Callable[[], ClientBatches]
    images: DeviceData


@dataclass(frozen=True)
class Chunk:
    """Finished clients: their positions among those given, and their ends with a leading client axis."""

    positions: range
    finish: ClientResult


class Executor(Protocol):
    """What both executors can do."""

    name: str

    def train(self, clients: Sequence[Client]) -> Iterator[Chunk]:
        """Train clients, of one run or of several; yields them in order."""
        ...

    def predict(
        self, models: Sequence[tuple[Tree, Tree]], images: Tensor, prepare: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Logits (models, images, Y) in evaluation mode of models given as (parameters, buffers)."""
        ...


def make_executor(
    name: str,
    build: Callable[[], nn.Module],
    *,
    pool: int,
    autocast: torch.dtype | None,
    chunk: int | None = None,
    record: Recorder | None = None,
    tuner: ConvTuner | None = None,
) -> Executor:
    """The executor of that name.

    Args:
        name: ``loop`` or ``stacked``.
        build: makes the network (its tensors are never used, only its structure).
        pool: threads of the loop executor.
        autocast: dtype of mixed precision, or None.
        chunk: most clients of a stack; None: ``CHUNK``.
        record: how the stacked executor records evaluations as CUDA graphs; None: not at all.
        tuner: chooses how it convolves; None: in the way that is fastest on a CPU.
    """
    if name == "stacked":
        return StackedExecutor(build(), autocast, chunk, record, tuner)
    return LoopExecutor([build() for _ in range(pool)], autocast)


@dataclass(frozen=True)
class _Seat:
    """A place for one thread: a network of its own, and its forward pass."""

    network: nn.Module
    forward: Forward


class LoopExecutor:
    """One client after another in each of several Python threads, every thread with a network of its own.

    Torch releases the interpreter in its kernels, so threads run in parallel. Each computes with one torch thread, so
    the order of every sum is that of a pool of one, which is the reference that all else is tested against. A network
    shared by two threads would not do: a forward pass swaps the tensors inside it.
    """

    name = "loop"

    def __init__(self, networks: Sequence[nn.Module], autocast: torch.dtype | None) -> None:
        self._idle: SimpleQueue[_Seat] = SimpleQueue()
        for network in networks:
            self._idle.put(_Seat(network, pure_forward(network)))
        self._ahead = 2 * len(networks)
        self._autocast = autocast
        self._pool = ThreadPoolExecutor(len(networks), "clients", initializer=torch.set_num_threads, initargs=(1,))

    def train(self, clients: Sequence[Client]) -> Iterator[Chunk]:
        """Train the clients; at most a few finished ones wait for their turn, so memory does not grow with clients."""

        def one(client: Client, seat: _Seat) -> ClientResult:
            seat.network.train()
            pixels, labels = (stack[:, 0] for stack in client.images.gather([client.batch()]))
            images = _pixels_last(client.images.prepare(pixels.flatten(0, 1))).unflatten(0, labels.shape)
            begin = client.start()
            begin = replace(begin, params=tmap(_pixels_last, begin.params))
            return local_train(seat.forward, _identity, client.task, begin, zip(images, labels, strict=True))

        for position, finish in enumerate(self._map(one, clients)):
            yield Chunk(range(position, position + 1), _unsqueeze(finish))

    def predict(
        self, models: Sequence[tuple[Tree, Tree]], images: Tensor, prepare: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Batches of images spread over the pool."""
        ready = [(tmap(_pixels_last, params), buffers) for params, buffers in models]

        def one(job: tuple[tuple[Tree, Tree], Tensor], seat: _Seat) -> Tensor:
            (params, buffers), batch = job
            seat.network.eval()
            pixels = _pixels_last(prepare(batch))
            with torch.no_grad(), autocast(batch.device, self._autocast):
                return seat.forward(params, buffers, pixels)[1]

        parts = torch.split(images, CORE_EVALUATION_BATCH)
        logits = list(self._map(one, [(model, part) for model in ready for part in parts]))
        return torch.stack([torch.cat(logits[i : i + len(parts)]) for i in range(0, len(logits), len(parts))])

    def _map(self, function: Callable[[Any, _Seat], Any], jobs: Sequence[Any]) -> Iterator[Any]:
        """Results in the order of the jobs, with a bounded number of them started ahead."""

        def borrow(job: Any) -> Any:
            seat = self._idle.get()
            try:
                return function(job, seat)
            finally:
                self._idle.put(seat)

        running: deque[Future[Any]] = deque()
        try:
            for job in jobs:
                running.append(self._pool.submit(borrow, job))
                if len(running) > self._ahead:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


class StackedExecutor:
    """Clients along a leading axis of every tensor, trained as one computation in chunks."""

    name = "stacked"

    def __init__(
        self,
        network: nn.Module,
        autocast: torch.dtype | None,
        chunk: int | None = None,
        record: Recorder | None = None,
        tuner: ConvTuner | None = None,
    ) -> None:
        self.chunk = chunk or CHUNK  #: most clients of a stack
        self.convolutions: Mapping[str, str] = {}  #: how each layer convolves, once it was chosen
        self._network, self._autocast, self._tuner = network, autocast, tuner
        self._forward: Forward = stacked_forward(network)
        evaluate = partial(_evaluate, network, pure_forward(network), autocast)
        if record is not None:
            evaluate = partial(_by_graph, GraphedFunction(evaluate, record, "an evaluation"))
        self._evaluate = evaluate

    def train(self, clients: Sequence[Client]) -> Iterator[Chunk]:
        """Train the clients chunk by chunk; chunks that do not fit into memory are halved, from then on."""
        first = 0
        while first < len(clients):
            chunk = clients[first : first + self.chunk]
            try:
                finish = self._train_stack(chunk)
            except RuntimeError as error:
                if len(chunk) == 1 or not out_of_memory(error):
                    raise
                self.halve(len(chunk))
                continue
            yield Chunk(range(first, first + len(chunk)), finish)
            first += len(chunk)

    def _train_stack(self, clients: Sequence[Client]) -> ClientResult:
        images = clients[0].images
        raw, labels = images.gather([client.batch() for client in clients])
        # Pixels become numbers step by step: those of a whole round would not stay in the cache.
        batches = ((images.prepare(pixels), of_step) for pixels, of_step in zip(raw, labels, strict=True))
        begin = _stack([client.start() for client in clients])
        return self.train_stack(_join_tasks([client.task for client in clients], begin), begin, batches)

    def train_stack(
        self, task: ClientTask, start: ClientInit, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> ClientResult:
        """Train clients that are stacked already, all at once."""
        self._network.train()
        return local_train(self._forward, vmap, task, start, batches)

    def tune(self, clients: int, images_BCHW: tuple[int, ...]) -> None:
        """Choose how stacks of so many clients convolve batches of images of this shape."""
        if self._tuner is not None:
            self.convolutions = self._tuner.tune(self._network, clients, images_BCHW, self._autocast)

    def halve(self, chunk: int) -> None:
        """Train in stacks of half of ``chunk`` clients, for which memory has run out."""
        self.chunk = chunk // 2
        _log.warning("out of memory with %d clients in a stack; going on with %d", chunk, self.chunk)

    def predict(
        self, models: Sequence[tuple[Tree, Tree]], images: Tensor, prepare: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Model by model, batch by batch."""
        parts = torch.split(images, EVALUATION_BATCH)
        return torch.stack(
            [
                torch.cat([self._evaluate([params, buffers, {"pixels": prepare(part)}])[0]["logits"] for part in parts])
                for params, buffers in models
            ]
        )


def _evaluate(network: nn.Module, forward: Forward, precision: torch.dtype | None, trees: Sequence[Tree]) -> list[Tree]:
    """Logits of one model on one batch, from its parameters, its buffers and the pixels."""
    params, buffers, batch = trees
    network.eval()
    with torch.no_grad(), autocast(batch["pixels"].device, precision):
        return [{"logits": forward(params, buffers, batch["pixels"])[1]}]


def _by_graph(graphed: GraphedFunction, trees: Sequence[Tree]) -> list[Tree]:
    return graphed(len(trees[2]["pixels"]), trees)


def _identity(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


def _pixels_last(x: Tensor) -> Tensor:
    """Images or convolution weights in the layout in which CPU convolutions are fastest; others as they are."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _unsqueeze(finish: ClientResult) -> ClientResult:
    def add_axis(value: Any) -> Any:
        return {k: v.unsqueeze(0) for k, v in value.items()} if isinstance(value, dict) else value.unsqueeze(0)

    return ClientResult(**{field.name: add_axis(getattr(finish, field.name)) for field in fields(ClientResult)})


def _stack(starts: Sequence[ClientInit]) -> ClientInit:
    def join(name: str) -> Any:
        values = [getattr(start, name) for start in starts]
        if isinstance(values[0], dict):
            return {key: torch.stack([value[key] for value in values]) for key in values[0]}
        return torch.stack(values)

    trees = {name: join(name) for name in ("params", "buffers", "velocity", "state", "counts_Y")}
    return ClientInit(**trees, steps=_join_steps(starts))


def _join_tasks(tasks: Sequence[ClientTask], begin: ClientInit) -> ClientTask:
    """The task of a stack: that of its only run, or what its runs share and what each client has of its own."""
    first = tasks[0]
    if all(task is first for task in tasks):
        return first
    like = next(iter(begin.params.values()))

    def numbers(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)

    settings = {field.name: [getattr(task.method, field.name) for task in tasks] for field in fields(first.method)}
    return replace(
        first,
        each={
            "x": {name: begin.params[name] for name in first.x},  # the beginning is x: training works on a copy
            "server": {name: torch.stack([task.server[name] for task in tasks]) for name in first.server},
            "lr": numbers([task.sgd.lr for task in tasks]),
        },
        hyperparameters={name: numbers(values) for name, values in settings.items() if len(set(values)) > 1},
    )


def _join_steps(starts: Sequence[ClientInit]) -> int | Tensor:
    """The number of steps that all take, or each client's own, in the dtype that hooks compute with."""
    steps = [start.steps for start in starts]
    if len(set(steps)) == 1:
        return steps[0]
    like = next(iter(starts[0].params.values()))
    return torch.tensor(steps, dtype=like.dtype, device=like.device)
