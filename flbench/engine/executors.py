"""Two ways to run the same local training for many clients: one by one in a pool of threads, or stacked.

Both yield the results in client order, in chunks with a leading client axis, and the server sums in that order. One
client's training depends neither on the other clients nor on the size of the pool, so no bit of the result does.

Shape suffixes: N clients of a chunk, E local steps, B batch, M images of an evaluation batch, Y classes.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, repeat
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flbench.choices import UsedExecutor
from flbench.engine.client_map import over_clients
from flbench.engine.clients import ChunkJob, ClientResult, JobAt, Results, map_tensors
from flbench.engine.conv_tuner import ConvTuner, convolutions_of, convolve
from flbench.engine.cuda_graph import GraphedFunction, Recorder, Trial
from flbench.engine.dense_stack import dense_layers
from flbench.engine.device_data import STAY, LeavingBatches
from flbench.engine.gradients import Passes, autocast
from flbench.engine.local import local_train, with_twin
from flbench.engine.native_stack import NativeMlp
from flbench.errors import out_of_memory
from flbench.methods.base import Tree, tmap
from flbench.models.convolutions import pixels_last
from flbench.models.masks import mask_keys
from flbench.models.network import buffers_that_are, pure_forward, stacked_forward
from flbench.models.onednn_products import multiplied_by_onednn

_log = logging.getLogger(__name__)

#: Most clients trained as one stack: as many as a core's cache likes. On MLPs of 9 to 25 thousand weights 20 to 40 were
#: fastest, and 10 or 90 took a tenth to a third longer. On a CPU the number changes no bit.
CHUNK = 30

#: The same of a network with compiled convolutions in weights of all clients: beyond, the optimizer's passes over them
#: leave the cache. Stacks of 5 LeNets and of 2 CNNs are as fast as larger ones, and there is work for several threads.
STACK_WEIGHTS = 250_000

#: Images in one forward pass of an evaluation: of a stack, and on one core, in whose cache they must fit.
EVALUATION_BATCH = 500
CORE_EVALUATION_BATCH = 100


#: From the features (B, D) and logits (B, Y) of a batch to the logits that are evaluated.
Predicted = Callable[[Tensor, Tensor], Tensor]


def _logits_alone(features_BD: Tensor, logits_BY: Tensor) -> Tensor:
    return logits_BY


class Executor(Protocol):
    """What both executors can do."""

    name: UsedExecutor

    def laid_out(self, tree: Tree) -> Tree:
        """Return what the server sends in the layout in which clients are trained."""

    def train(self, clients: int, job: JobAt) -> Results:
        """Train a number of clients chunk by chunk, in order."""

    def predict(
        self,
        models: Sequence[tuple[Tree, Tree]],
        images: Tensor,
        prepare: Callable[[Tensor], Tensor],
        each: Sequence[Predicted] | None = None,
    ) -> Tensor:
        """Return logits (models, images, Y) in evaluation mode of models given as (parameters, buffers).

        ``each`` makes the logits of a model from its outputs; None: they are the network's own.
        """


class LoopExecutor:
    """One client after another in each of several Python threads, every thread with a network of its own.

    Torch releases the interpreter in its kernels, so threads run in parallel. Each computes with one torch thread, so
    the order of every sum is that of a pool of one, which is the reference of all tests. Threads cannot share a
    network, because a forward pass replaces the tensors inside it.
    """

    def __init__(self, networks: Sequence[nn.Module], autocast: torch.dtype | None, *, onednn: bool = False) -> None:
        """``onednn``: multiply large matrices by oneDNN."""
        if buffers_that_are("shares", networks[0]):
            raise ValueError("layers that combine the clients of a step need the stacked executor")
        self.name: UsedExecutor = "loop-onednn" if onednn else "loop"
        self._idle: SimpleQueue[Passes] = SimpleQueue()
        for network in networks:
            forward = pure_forward(network)
            forward = multiplied_by_onednn(forward) if onednn else forward
            self._idle.put(Passes(network, forward, mask_keys=mask_keys(network)))
        self._ahead = 2 * len(networks)
        self._autocast = autocast
        self._pool = ThreadPoolExecutor(len(networks), "clients", initializer=torch.set_num_threads, initargs=(1,))

    def laid_out(self, tree: Tree) -> Tree:
        """Return a tree channels last, once a round: leaves of two layouts take several times as long to combine."""
        return tmap(_pixels_last, tree)

    def train(self, clients: int, job: JobAt) -> Results:
        """Train each client as a chunk of its own; only a few results wait to be yielded, so memory stays bounded."""

        def one(position: int, seat: Passes) -> ClientResult:
            _set_training(seat.network)
            work = job(slice(position, position + 1))
            batches = work.whole_batches
            pixels, labels = batches.raw_ENBCHW[:, 0], batches.labels_ENB[:, 0]
            images = _pixels_last(batches.prepare(pixels.flatten(0, 1))).unflatten(0, labels.shape)
            init = map_tensors(work.init, lambda leaf: leaf[0])
            init = replace(  # as ``laid_out``
                init,
                params=tmap(_pixels_last, init.params),
                buffers=tmap(_pixels_last, init.buffers),
                state=tmap(_pixels_last, init.state),
                velocity=tmap(_pixels_last, init.velocity),
                twin=tmap(_pixels_last, init.twin),
            )
            start = {name: init.params[name] for name in work.task.x}
            twin = work.twin if work.twin is None else replace(work.twin, x=start)
            ready = ChunkJob(replace(work.task, x=start), init, batches, twin=twin)
            steps: Iterable[tuple[Tensor, Tensor]] = zip(images, labels, strict=True)
            if batches.sizes_EN is not None:
                sizes = batches.sizes_EN[:, 0].tolist()
                steps = [(x[:size], y[:size]) for (x, y), size in zip(steps, sizes, strict=True)]
            keys = repeat(None) if batches.keys_EN is None else batches.keys_EN[:, 0]
            every = [(x, y, None, key) for (x, y), key in zip(steps, keys, strict=False)]
            own = ((_pixels_last(x[0]), y[0], there[0]) for x, y, there in work.own)
            result = local_train(seat, lambda hook: hook, ready.task, init, every, own)
            result = with_twin(result, seat, lambda hook: hook, ready, lambda: every)
            return map_tensors(result, lambda leaf: leaf.unsqueeze(0))

        for position, result in enumerate(self.map(one, range(clients))):
            yield slice(position, position + 1), result

    def predict(
        self,
        models: Sequence[tuple[Tree, Tree]],
        images: Tensor,
        prepare: Callable[[Tensor], Tensor],
        each: Sequence[Predicted] | None = None,
    ) -> Tensor:
        each = each or [_logits_alone] * len(models)
        ready = [
            (tmap(_pixels_last, params), tmap(_pixels_last, buffers), of)
            for (params, buffers), of in zip(models, each, strict=True)
        ]

        def one(job: tuple[tuple[Tree, Tree, Predicted], Tensor], seat: Passes) -> Tensor:
            (params, buffers, of), batch = job
            seat.network.eval()
            pixels = _pixels_last(prepare(batch))
            with torch.no_grad(), autocast(batch.device, self._autocast):
                return of(*seat.forward(params, buffers, pixels))

        parts = torch.split(images, CORE_EVALUATION_BATCH)
        logits = list(self.map(one, [(model, part) for model in ready for part in parts]))
        return torch.stack([torch.cat(logits[i : i + len(parts)]) for i in range(0, len(logits), len(parts))])

    def map(self, function: Callable[[Any, Passes], Any], jobs: Sequence[Any]) -> Iterator[Any]:
        """Yield results in the order of the jobs, with a bounded number of jobs started ahead."""

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

    name: UsedExecutor = "stacked"  # or "native"

    def __init__(
        self,
        network: nn.Module,
        autocast: torch.dtype | None,
        chunk: int | None = None,
        record: Recorder | None = None,
        tuner: ConvTuner | None = None,
        pixels_last: bool = False,
        native: NativeMlp | None = None,
    ) -> None:
        if native is not None:
            self.name = "native"
        self._whole_cohorts = bool(buffers_that_are("shares", network))
        self.chunk = sys.maxsize if self._whole_cohorts else chunk or CHUNK  #: most clients of a stack
        self.convolutions: Mapping[str, str] = {}  #: how each layer convolves, once ``tune`` has chosen it
        self._network, self._autocast, self._tuner = network, autocast, tuner
        self.pixels_last = pixels_last  #: the layout in which a GPU's convolutions are fastest
        dense = dense_layers(network)
        self._passes = Passes(network, stacked_forward(network), dense, mask_keys(network), native)
        #: Whether no autograd derives the network.
        self.by_hand = (dense is not None or native is not None) and autocast is None
        self._forward_one = pure_forward(network)
        self._graphed = None if record is None else GraphedFunction(self._evaluate, record, "an evaluation")

    def laid_out(self, tree: Tree) -> Tree:
        """Return a tree as it is."""
        return tree

    def train(self, clients: int, job: JobAt, *, repeat: bool = True) -> Results:
        """Train chunk by chunk; repeat a chunk that does not fit into memory in halves, or let its error pass."""
        first = 0
        while first < clients:
            chunk = slice(first, min(first + self.chunk, clients))
            try:
                work = _with_pixels_last(job(chunk)) if self.pixels_last else job(chunk)
                _set_training(self._network)
                result = _trained(work, self._passes)
            except RuntimeError as error:
                if not repeat:  # within a recording: the whole round has to be repeated
                    raise
                self.halve(chunk.stop - first, error)
                continue
            yield chunk, result
            first = chunk.stop

    def first_step(self, job: ChunkJob) -> None:
        """Train one step of a chunk, and drop the result."""
        self._network.train()
        result = local_train(self._passes, over_clients, job.task, job.init, islice(job.batches.steps(), 1), job.own)
        with_twin(result, self._passes, over_clients, job, lambda: islice(job.batches.steps(), 1))

    def tune(self, kind: Hashable, trial: Trial) -> None:
        """Choose how the stacks of rounds of this kind convolve, if there is a tuner."""
        if self._tuner is not None:
            how = kind, self.chunk, self._autocast, torch.backends.cudnn.allow_tf32
            self.convolutions = self._tuner.tune(self._network, how, trial)

    def convolve(self, way: str) -> None:
        """Convolve in this way, whatever the tuner would choose."""
        self._tuner = None
        self.convolutions = convolve(convolutions_of(self._network), way)

    def halve(self, chunk: int, error: RuntimeError) -> None:
        """Train in stacks of half of ``chunk`` clients from now on, for which memory has run out.

        Raises:
            RuntimeError: the error is another one, there is a single client, or the cohort cannot be cut.
        """
        if chunk == 1 or self._whole_cohorts or not out_of_memory(error):
            raise error
        self.chunk = chunk // 2
        _log.warning("out of memory with %d clients in a stack; continuing with %d", chunk, self.chunk)

    def predict(
        self,
        models: Sequence[tuple[Tree, Tree]],
        images: Tensor,
        prepare: Callable[[Tensor], Tensor],
        each: Sequence[Predicted] | None = None,
    ) -> Tensor:
        logits = []
        for number, (params, buffers) in enumerate(models):
            for part in torch.split(images, EVALUATION_BATCH):
                trees = [params, buffers, {"pixels": prepare(part)}]
                if each is not None:  # of features, too, which no graph returns
                    logits.append(each[number](*self._outputs(trees)))
                else:
                    out = self._evaluate(trees) if self._graphed is None else self._graphed(len(part), trees)
                    logits.append(out[0]["logits"])
        return torch.cat(logits).view(len(models), len(images), -1)

    def _evaluate(self, trees: Sequence[Tree]) -> list[Tree]:
        """The function that is recorded."""
        return [{"logits": self._outputs(trees)[1]}]

    def _outputs(self, trees: Sequence[Tree]) -> tuple[Tensor, Tensor]:
        """Features and logits of one model on one batch, from its parameters, its buffers and the pixels."""
        params, buffers, pixels = trees[0], trees[1], trees[2]["pixels"]
        if self.pixels_last:
            params, buffers = tmap(_pixels_last, params), tmap(_pixels_last, buffers)
            pixels = _pixels_last(pixels)
        self._network.eval()
        with torch.no_grad(), autocast(pixels.device, self._autocast):
            return self._forward_one(params, buffers, pixels)


class StacksInThreads(StackedExecutor):
    """Stacks in each of several threads, as ``LoopExecutor`` has clients: for networks with compiled convolutions.

    The size of a stack depends on the network alone, so that the number of threads changes no bit.
    """

    def __init__(self, networks: Sequence[nn.Module], native: NativeMlp) -> None:
        weights = sum(leaf.numel() for leaf in networks[0].parameters())  # exact: whole numbers
        super().__init__(networks[0], None, min(CHUNK, max(STAY, STACK_WEIGHTS // weights)), native=native)
        self._loop = LoopExecutor(networks, None)

    def train(self, clients: int, job: JobAt, *, repeat: bool = True) -> Results:
        def one(chunk: slice, seat: Passes) -> ClientResult:
            seat.network.train()
            forward = stacked_forward(seat.network)
            return _trained(job(chunk), replace(seat, forward=forward, native=self._passes.native))

        chunks = [slice(first, min(first + self.chunk, clients)) for first in range(0, clients, self.chunk)]
        yield from zip(chunks, self._loop.map(one, chunks), strict=True)

    def predict(
        self,
        models: Sequence[tuple[Tree, Tree]],
        images: Tensor,
        prepare: Callable[[Tensor], Tensor],
        each: Sequence[Predicted] | None = None,
    ) -> Tensor:
        return self._loop.predict(models, images, prepare, each)


def _trained(work: ChunkJob, passes: Passes) -> ClientResult:
    """The result of a stack."""
    steps = work.batches if isinstance(work.batches, LeavingBatches) else work.batches.steps()
    result = local_train(passes, over_clients, work.task, work.init, steps, work.own)
    return work.in_place(with_twin(result, passes, over_clients, work, work.batches.steps))


def _with_pixels_last(work: ChunkJob) -> ChunkJob:
    """The job of a stack with everything channels last: leaves of two layouts take several times as long to combine."""

    def laid_out(tree: Tree) -> Tree:
        return {name: pixels_last(leaf) if leaf.dim() >= 4 else leaf for name, leaf in tree.items()}

    init, task = work.init, work.task
    names = ("params", "buffers", "state", "velocity", "twin")
    trees: dict[str, Any] = {name: laid_out(getattr(init, name)) for name in names}
    each = {name: laid_out(value) if isinstance(value, dict) else value for name, value in task.each.items()}
    shared: dict[str, Any] = {"x": laid_out(task.x), "server": laid_out(task.server), "each": each}
    twin = work.twin if work.twin is None else replace(work.twin, **shared)
    raw = work.whole_batches.raw_ENBCHW
    batches = replace(work.whole_batches, raw_ENBCHW=pixels_last(raw) if raw.dim() == 6 else raw)
    own = ((pixels_last(images) if images.dim() >= 5 else images, labels, there) for images, labels, there in work.own)
    return ChunkJob(replace(task, **shared), replace(init, **trees), batches, own, twin)


def _set_training(network: nn.Module) -> None:
    """Put a network into training mode; walking through its modules takes a hundredth of a small round."""
    if not network.training:
        network.train()


def _pixels_last(x: Tensor) -> Tensor:
    """Convert 4-dimensional tensors to channels-last layout, in which convolutions are fastest."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
