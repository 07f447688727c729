"""A run: what stays the same in all of its rounds, and what is drawn for each of them.

Everything random (who takes part in a round, and what each participant sees) is a pure function of (seed, round,
client), so it can be drawn in any order, rounds ahead, and again.

Shape suffixes: N participants (of all runs trained together), E local steps, B batch, Y classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from flbench.data.batches import Rows, federated_rows, partial_rows
from flbench.data.cohorts.base import Population, Sampler, cohort_of
from flbench.data.cohorts.uniform import Uniform
from flbench.engine.cuda_graph import Recorder
from flbench.engine.device_data import OWN_BATCH, ClientBatches, DeviceData, OwnBatch, on_device, side_by_side
from flbench.engine.executors import Executor
from flbench.engine.local_steps import DrawSteps
from flbench.engine.optimizers import Sgd
from flbench.engine.server_data import HeldByServer
from flbench.methods.base import Cohort, Method, Tree, overrides
from flbench.models.network import BufferUpdate
from flbench.models.observers import Observation

#: The sampler of cohorts that runs have unless they name another.
UNIFORM = Uniform()

#: Rounds drawn ahead of the requested one, and the threads that draw them.
ROUNDS_AHEAD = 16
THREADS = 4


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """What federated and centralized training are both made from.

    Attributes:
        sgd: the local optimizer.
        autocast: dtype of mixed precision, or None.
        batch_size: samples in a batch.
        images: the data set.
        executor: trains clients and evaluates models.
        params: initial parameters, in the network's order. ``buffers``: likewise.
        seed: of all random choices.
        masked: whether the network has dropout, whose masks have a key in each step.
        drop_last: whether the remainder of an epoch is dropped; otherwise it is a partial batch.
        record: records a round as one CUDA graph; None: rounds are computed operation by operation, as on a CPU.
    """

    sgd: Sgd
    autocast: torch.dtype | None
    batch_size: int
    images: DeviceData
    executor: Executor
    params: Tree
    buffers: Tree
    seed: int
    record: Recorder | None = None
    drop_last: bool = True
    masked: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """What stays the same in all rounds of a federated run; equal only to itself.

    Attributes:
        setup: what it is made from.
        method: the federated method.
        rows: the training rows of each client. ``steps``: its local steps in a round, the most where they are drawn.
        clients: the same clients, as the sampler of cohorts sees them.
        counts_NY: training samples of each client by class, of all clients. ``counts``: the same on the host.
        head: name of the head's weight.
        frozen: names of what never changes and no method sees (``models.frozen``).
        constants: names of the buffers that clients do not change, those in ``frozen`` among them. ``shares``: of those
            that hold a client's share of the cohort's samples.
        buffer_updates: what the layers make of the averaged buffers.
        server_data: what the server holds, or None.
        own_NM: ``device_data.own_rows``, if the method asks for class statistics or layers observe.
        sampler: draws cohorts.
        draw_steps: draws the numbers of local steps; None if they are fixed.
        twin: trains the clients' second sets of weights, if they have them.
        extra: names of the parameters that the method adds to the network's, in order.
        any_place: whether a client has the same bits at every place of a stack, so that stacks may be ordered.
        unshared: names of the layers' parameters that stay on the clients. ``observation``: what layers observe.
    """

    setup: TrainingSetup
    method: Method
    rows: tuple[Rows, ...]
    steps: Sequence[int]
    clients: Population
    counts_NY: Tensor
    counts: Rows
    head: str
    frozen: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()
    buffer_updates: tuple[BufferUpdate, ...] = ()
    server_data: HeldByServer | None = None
    own_NM: Tensor | None = None
    sampler: Sampler = UNIFORM
    draw_steps: DrawSteps | None = None
    twin: Method | None = None
    extra: tuple[str, ...] = ()
    unshared: frozenset[str] = frozenset()
    observation: Observation | None = None
    any_place: bool = False

    @cached_property
    def server_draws(self) -> bool:
        """Whether a hook of the server could draw random numbers."""
        return any(overrides(type(self.method), hook) for hook in ("aggregate", "server_step"))

    @property
    def cohort_size(self) -> int:
        """Participants of a round; about their mean number where it varies."""
        return self.clients.size

    def cohort(self, round: int) -> Rows:
        """Return the participants of a round, in ascending order."""
        return cohort_of(self.sampler, self.clients, round)

    def participants(self, round: int) -> int:
        """Return how many clients take part in a round."""
        return len(self.cohort(round)) if self.sampler.varies else self.cohort_size

    def steps_of(self, cohort: Rows, round: int) -> list[int]:
        """Return the participants' numbers of local steps."""
        return [self.steps[client] for client in cohort] if self.draw_steps is None else self.draw_steps(cohort, round)

    def batch(self, client: int, round: int, steps: int | None = None) -> ClientBatches:
        """Return what a client sees in a round, in this number of steps; None: in its most."""
        key = {"seed": self.setup.seed, "client": client, "round": round}
        shape = {"steps": steps or self.steps[client], "batch_size": self.setup.batch_size}
        masked = self.setup.masked
        if self.setup.drop_last:
            return self.setup.images.draw(federated_rows(self.rows[client], **key, **shape), None, **key, masked=masked)
        rows_EB, sizes_E = partial_rows(self.rows[client], **key, **shape)
        return self.setup.images.draw(rows_EB, sizes_E, **key, masked=masked)

    def weights(self, cohort: Rows, steps: Sequence[int]) -> NDArray[np.float64]:
        """Return the numbers (5, n) of participants with these numbers of steps.

        They are the shares of the samples, the weights of change and message, the numbers of steps, and the numbers of
        samples over the mean of all clients.
        """
        is_known = self.draw_steps is None and len(cohort) == len(self.rows)
        return self._weights_of_all if is_known else self._weights(cohort, steps)

    @cached_property
    def _weights_of_all(self) -> NDArray[np.float64]:
        return self._weights(np.arange(len(self.rows)), self.steps)

    def _weights(self, cohort: Rows, steps: Sequence[int]) -> NDArray[np.float64]:
        sizes = [len(self.rows[client]) for client in cohort]
        total = sum(sizes)  # exact: whole numbers
        share = [size / total for size in sizes]
        seen = Cohort(share, steps, self.counts[cohort], self.setup.sgd.momentum)
        deltas, messages = self.method.delta_weights(seen), self.method.message_weights(seen)
        mean = sum(map(len, self.rows)) / len(self.rows)  # exact: whole numbers
        relative = [size / mean for size in sizes]
        return np.array([share, deltas, messages, steps, relative], dtype=np.float64)


@dataclass(frozen=True)
class Broadcast:
    """What the server of a run sends at the start of a round.

    Attributes:
        x: where clients start. ``start``: the same in the layout in which the executor trains.
        server: what else they receive, in that layout.
    """

    x: Tree
    start: Tree
    server: Tree

    @classmethod
    def of(cls, run: Run, x: Tree, server: Tree) -> Broadcast:
        """Return what the server of a run sends with these shared parameters in this state."""
        (x, sent), laid_out = run.method.broadcast(x, server), run.setup.executor.laid_out
        return cls(x, laid_out(x), laid_out(sent))


def own_batches(members: Sequence[tuple[Run, Tensor]], sizes_N: Tensor, *, known: bool) -> Iterable[OwnBatch]:
    """Return the training data of some clients of each run, as far as its ``own_NM`` has them.

    Args:
        members: the runs, each with the numbers of its clients.
        sizes_N: the number of training samples of each client, of all runs side by side.
        known: whether the clients are always these: batches that none of them needs are then left out on a CPU.
    """
    each = [run.own_NM.index_select(0, client_n) for run, client_n in members if run.own_NM is not None]
    width = max(rows_nM.shape[1] for rows_nM in each)
    rows_NM = torch.cat([pad(rows_nM, (0, width - rows_nM.shape[1])) for rows_nM in each])
    if known and sizes_N.is_cpu:  # elsewhere reading a number waits for the device
        rows_NM = rows_NM[:, : -(-int(sizes_N.max()) // OWN_BATCH) * OWN_BATCH]
    return members[0][0].setup.images.own(rows_NM, sizes_N)


#: The tensors of ``RoundInputs`` with a number for each participant.
_NUMBERS = ("cohort_N", "weights_5N", "round_N", "lr_N")


@dataclass(frozen=True)
class RoundInputs:
    """What is drawn for one round of each run, the participants of all runs side by side.

    Attributes:
        cohort_N: each participant's number in its run.
        weights_5N: their ``Run.weights``.
        round_N: the number of the round, of each participant's run; float64.
        lr_N: their local learning rate in that round; float64.
        steps_N: the numbers of steps, where the host knows who takes part. ``rounds``: the round of each run, likewise.
        sizes: how many take part of each run, likewise.
        batches: for the positions of a chunk, the tensors of ``device_data.side_by_side``.
    """

    cohort_N: Tensor
    weights_5N: Tensor
    round_N: Tensor
    lr_N: Tensor
    steps_N: Sequence[int] | None
    rounds: Sequence[int] | None
    sizes: tuple[int, ...] | None
    batches: Callable[[slice], Tree]

    @classmethod
    def draw(
        cls,
        runs: Sequence[Run],
        rounds: Sequence[int],
        device: torch.device,
        cohorts: Sequence[Rows] | None = None,
    ) -> RoundInputs:
        """Draw one round of each run, for given participants if there are any; batches when a chunk asks for them."""
        cohorts = cohorts or [run.cohort(round) for run, round in zip(runs, rounds, strict=True)]
        members: list[tuple[Run, int, int, int]] = []  # run, round, client and number of steps of each participant
        weights, rates = [], []
        for run, round, cohort in zip(runs, rounds, cohorts, strict=True):
            steps = run.steps_of(cohort, round)
            members += [(run, round, client, own) for client, own in zip(cohort.tolist(), steps, strict=True)]
            weights.append(run.weights(cohort, steps))
            rates.append(run.setup.sgd.lr_in(round))
        sizes = tuple(map(len, cohorts))
        numbers = {
            "cohort_N": np.concatenate(cohorts),
            "weights_5N": np.concatenate(weights, axis=1),
            "round_N": np.repeat(np.array(rounds, dtype=np.float64), sizes),
            "lr_N": np.repeat(np.array(rates, dtype=np.float64), sizes),
        }
        small = {name: torch.from_numpy(array) for name, array in numbers.items()}

        def batches(positions: slice) -> Tree:
            return on_device(
                side_by_side([run.batch(client, round, number) for run, round, client, number in members[positions]]),
                device,
            )

        steps_N = [steps for *_, steps in members]
        return cls(**on_device(small, device), steps_N=steps_N, rounds=rounds, sizes=sizes, batches=batches)

    @classmethod
    def of_tree(cls, tree: Tree) -> RoundInputs:
        """The inverse of ``tree``; numbers stay on the device."""
        drawn = dict(tree)
        small = {name: drawn.pop(name) for name in _NUMBERS}
        return cls(
            **small,
            steps_N=None,
            rounds=None,
            sizes=None,
            batches=lambda at: {name: leaf[at] for name, leaf in drawn.items()},
        )

    def tree(self) -> Tree:
        """Everything as tensors by name, the batches of all participants drawn."""
        small = {name: getattr(self, name) for name in _NUMBERS}
        return {**small, **self.batches(slice(0, len(self.cohort_N)))}


class Prefetcher:
    """Rounds of several runs, drawn ahead in threads and copied to the device asynchronously."""

    def __init__(self, runs: Sequence[Run], device: torch.device) -> None:
        self._runs, self._device = runs, device
        self._drawn: deque[tuple[tuple[int, ...], Future[Tree]]] = deque()
        self._pool = ThreadPoolExecutor(THREADS, "draws")

    def next(self, rounds: tuple[int, ...]) -> Tree:
        """Return ``RoundInputs.tree`` on the device; fast if the last call was for the previous round of each run."""
        if self._drawn and self._drawn[0][0] != rounds:
            self._drawn.clear()
        while len(self._drawn) <= ROUNDS_AHEAD:
            coming = tuple(round + len(self._drawn) for round in rounds)
            self._drawn.append((coming, self._pool.submit(self._draw, coming)))
        return on_device(self._drawn.popleft()[1].result(), self._device)

    def _draw(self, rounds: Sequence[int]) -> Tree:
        """One round, on the CPU: the threads never touch the device."""
        return RoundInputs.draw(self._runs, rounds, torch.device("cpu")).tree()
