"""What the local training of clients starts from, and what it returns: one client's, or a stack's.

Shape suffixes: N clients (absent for one), Y classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from flbench.engine.device_data import LeavingBatches, OwnBatch, StackedBatches
from flbench.engine.optimizers import Sgd
from flbench.methods.base import Method, Tree
from flbench.models.observers import Observation


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
        frozen: names of what no client changes and no method sees (``models.frozen``).
        extra: names of the parameters that the method adds to the network's.
        unshared: names of the layers' parameters that no hook of the steps sees (``StackableLayer.unshared``).
        observation: what layers observe before the steps, or None.
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
    frozen: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    unshared: frozenset[str] = frozenset()
    observation: Observation | None = None
    each: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Tensor] = field(default_factory=dict)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> ClientTask:
        """Return a copy with ``function`` applied to every tensor of the clients' own."""
        each = {name: _mapped(value, function) for name, value in self.each.items()}
        own = {name: function(value) for name, value in self.hyperparameters.items()}
        return replace(self, each=each, hyperparameters=own)


@dataclass(frozen=True)
class ClientInit:
    """The state of a client (or of a stack of clients) before training, which does not change it.

    Attributes:
        params: all parameters, including those that stay on the client.
        buffers: all buffers, and frozen parameters.
        velocity: state of the optimizer, or an empty tree for zero.
        state: the method's client state.
        counts_Y: training samples of each class.
        steps: number of local steps; a tensor (N,) of floats for a stack whose clients take unequal numbers.
        relative_size: number of training samples over the mean of all clients of the run.
        keys: of the hooks' random numbers; None if no hook draws any.
        twin: parameters and buffers of the second set of weights, as far as the client keeps them; empty without one.
        leave_after: the numbers of steps of the clients of a stack that they leave, the largest first; empty for a
            stack in which they wait.
    """

    params: Tree
    buffers: Tree
    velocity: Tree
    state: Tree
    counts_Y: Tensor
    steps: int | Tensor
    relative_size: Tensor
    keys: Tensor | None = None
    twin: Tree = field(default_factory=dict)
    leave_after: Sequence[int] = ()


@dataclass(frozen=True)
class ClientResult:
    """What ``ClientInit`` holds, after training; the message; the mean training loss of the steps; the twin likewise.

    ``buffers`` has nothing that is frozen. ``sent`` is what the method sends in place of the change of the shared
    parameters; empty: the change itself.
    """

    params: Tree
    buffers: Tree
    velocity: Tree
    state: Tree
    message: Tree
    loss: Tensor
    sent: Tree = field(default_factory=dict)
    twin: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class ChunkJob:
    """The local training of one chunk of clients: what they share, how they start, and their batches.

    ``own`` is their training data, for class statistics and for layers that observe; empty if there are neither.
    ``twin`` is what they share in the training of their second sets of weights. ``order_N`` are the clients' positions
    in the chunk if they are in another order.
    """

    task: ClientTask
    init: ClientInit
    batches: StackedBatches | LeavingBatches
    own: Iterable[OwnBatch] = ()
    twin: ClientTask | None = None
    order_N: Tensor | None = None

    @property
    def whole_batches(self) -> StackedBatches:
        """The batches of a single client, or of a stack on a GPU, which no client leaves."""
        assert isinstance(self.batches, StackedBatches)
        return self.batches

    def ordered(self, order_N: Tensor) -> ChunkJob:
        """Return the job with its clients in another order, in which their batches are already."""
        assert isinstance(self.batches, LeavingBatches)

        def at(leaf: Tensor) -> Tensor:
            return leaf.index_select(0, order_N)

        own = ((at(images), at(labels), at(there)) for images, labels, there in self.own)
        twin = None if self.twin is None else self.twin.mapped(at)
        init = replace(map_tensors(self.init, at), leave_after=self.batches.leave_after)
        return ChunkJob(self.task.mapped(at), init, self.batches, own, twin, order_N)

    def in_place(self, result: ClientResult) -> ClientResult:
        """Return the result with the clients in the order of their positions."""
        if self.order_N is None:
            return result
        back_N = self.order_N.argsort()
        return map_tensors(result, lambda leaf: leaf.index_select(0, back_N))


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
    return type(value)(**{each.name: _mapped(getattr(value, each.name), function) for each in fields(value)})


def _mapped(part: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, dict):
        return {name: function(leaf) for name, leaf in part.items()}
    return function(part) if isinstance(part, Tensor) else part
