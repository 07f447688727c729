"""Everything random in a federated run: who takes part in a round, and what each participant sees.

All of it is a pure function of (seed, round, client), so it can be drawn in any order, rounds ahead, and again.

Shape suffixes: N participants (of all runs trained together), E local steps, B batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flbench.data.batches import Rows, federated_rows
from flbench.engine.device_data import ClientBatches, DeviceData, on_device, side_by_side
from flbench.methods.base import Method, Tree
from flbench.streams import stream

#: Rounds drawn ahead of the requested one, and the threads that draw them.
ROUNDS_AHEAD = 16
THREADS = 4


@dataclass(frozen=True)
class ClientWeights:
    """The weights of a round's participants: their shares of the samples, their changes, their messages."""

    share: Sequence[float]
    deltas: Sequence[float]
    messages: Sequence[float]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws the rounds of one federated run; equal only to itself.

    Attributes:
        method: it weights the participants.
        momentum: of the local optimizer, on which the weights may depend.
        rows: the training rows of each client. ``steps``: its local steps in a round.
        cohort_size: participants of a round.
        images: the data set of the rows.
    """

    method: Method
    momentum: float
    rows: tuple[Rows, ...]
    steps: Sequence[int]
    batch_size: int
    cohort_size: int
    images: DeviceData
    seed: int

    def cohort(self, round: int) -> Rows:
        """Return the participants of a round, in ascending order."""
        count = len(self.rows)
        if self.cohort_size == count:
            return np.arange(count)
        drawn = stream(self.seed, "cohort", round).choice(count, self.cohort_size, replace=False)
        return np.sort(drawn)

    def batch(self, client: int, round: int) -> ClientBatches:
        """Return what a client sees in a round."""
        key = {"seed": self.seed, "client": client, "round": round}
        rows = federated_rows(self.rows[client], **key, steps=self.steps[client], batch_size=self.batch_size)
        return self.images.draw(rows, **key)

    def weights(self, cohort: Rows) -> ClientWeights:
        """Return the weights of these participants."""
        sizes = [len(self.rows[client]) for client in cohort]
        share = [size / sum(sizes) for size in sizes]
        deltas = self.method.delta_weights(share, [self.steps[client] for client in cohort], self.momentum)
        return ClientWeights(share, deltas, self.method.message_weights(share))


@dataclass(frozen=True)
class RoundInputs:
    """What is drawn for one round of each run, the participants of all runs side by side.

    Attributes:
        cohort_N: each participant's number in its run.
        weights_4N: share of the samples, weights of change and message, number of steps; float64.
        steps_N: the numbers of steps, where the host knows who takes part.
        batches: for the positions of a chunk, ``rows_NEB`` and ``crops_NEB3`` as ``device_data.side_by_side`` has them.
    """

    cohort_N: Tensor
    weights_4N: Tensor
    steps_N: Sequence[int] | None
    batches: Callable[[slice], Tree]

    @classmethod
    def draw(cls, samplers: Sequence[Sampler], rounds: Sequence[int], device: torch.device) -> RoundInputs:
        """Draw one round of each run; the batches only when a chunk asks for them."""
        drawn = list(zip(samplers, rounds, strict=True))
        cohorts = [sampler.cohort(round) for sampler, round in drawn]
        return cls.of_clients(samplers, rounds, cohorts, device)

    @classmethod
    def of_clients(
        cls, samplers: Sequence[Sampler], rounds: Sequence[int], cohorts: Sequence[Rows], device: torch.device
    ) -> RoundInputs:
        """The same for given participants of each run."""
        runs = list(zip(samplers, rounds, cohorts, strict=True))
        members = [(sampler, round, int(client)) for sampler, round, cohort in runs for client in cohort]
        steps_N = [sampler.steps[client] for sampler, _, client in members]
        weights = [sampler.weights(cohort) for sampler, _, cohort in runs]
        rows = [
            [share for each in weights for share in each.share],
            [weight for each in weights for weight in each.deltas],
            [weight for each in weights for weight in each.messages],
            steps_N,
        ]
        weights_4N = torch.from_numpy(np.array(rows, dtype=np.float64))
        cohort_N = torch.from_numpy(np.concatenate(cohorts))

        def batches(positions: slice) -> Tree:
            drawn = [sampler.batch(client, round) for sampler, round, client in members[positions]]
            return on_device(side_by_side(drawn), device)

        small = on_device({"cohort_N": cohort_N, "weights_4N": weights_4N}, device)
        return cls(**small, steps_N=steps_N, batches=batches)

    @classmethod
    def of_tree(cls, tree: Tree) -> RoundInputs:
        """The inverse of ``tree``; the numbers of steps stay on the device."""
        small = {"cohort_N", "weights_4N"}

        def batches(positions: slice) -> Tree:
            return {name: leaf[positions] for name, leaf in tree.items() if name not in small}

        return cls(tree["cohort_N"], tree["weights_4N"], None, batches)

    def tree(self) -> Tree:
        """Everything as tensors by name, the batches of all participants drawn."""
        return {"cohort_N": self.cohort_N, "weights_4N": self.weights_4N, **self.batches(slice(0, len(self.cohort_N)))}


class Prefetcher:
    """Rounds of several runs, drawn ahead in threads and copied to the device asynchronously."""

    def __init__(self, samplers: Sequence[Sampler], device: torch.device) -> None:
        self._samplers, self._device = samplers, device
        self._drawn: deque[tuple[tuple[int, ...], Future[Tree]]] = deque()
        self._pool = ThreadPoolExecutor(THREADS, "draws")  # its threads never touch the device

    def next(self, rounds: tuple[int, ...]) -> Tree:
        """Return ``RoundInputs.tree`` on the device; fast if the last call was for the previous round of each run."""
        if self._drawn and self._drawn[0][0] != rounds:
            self._drawn.clear()
        while len(self._drawn) <= ROUNDS_AHEAD:
            coming = tuple(round + len(self._drawn) for round in rounds)
            self._drawn.append((coming, self._pool.submit(_drawn_on_the_host, self._samplers, coming)))
        return on_device(self._drawn.popleft()[1].result(), self._device)


def _drawn_on_the_host(samplers: Sequence[Sampler], rounds: Sequence[int]) -> Tree:
    return RoundInputs.draw(samplers, rounds, torch.device("cpu")).tree()
