"""What chance decides in a federated run: who takes part in a round, and what each participant sees.

All of it is a pure function of (seed, round, client), so it can be drawn in any order, rounds ahead, and again.

Shape suffixes: N participants (of all runs trained together), E local steps, B batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from flbench.data.batches import Crops, Rows, federated_rows
from flbench.engine.device_data import ClientBatches, DeviceData
from flbench.methods.base import Method, Tree
from flbench.streams import stream

#: Rounds drawn ahead of the one that is asked for, and the threads that draw them.
ROUNDS_AHEAD = 16
THREADS = 4


@dataclass(frozen=True)
class ClientWeights:
    """How the participants of a round are weighed: their shares of the samples, their changes, their messages."""

    share: Sequence[float]
    deltas: Sequence[float]
    messages: Sequence[float]


@dataclass(frozen=True, eq=False)
class Sampler:
    """A federated run as far as it says what can be drawn; equal only to itself.

    Attributes:
        method: it weighs the participants.
        momentum: of the local optimizer, on which that may depend.
        rows: the training rows of each client. ``steps``: its local steps in a round.
        cohort_size: participants of a round.
        images: what the rows are of.
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
        """The participants, in ascending order."""
        count = len(self.rows)
        if self.cohort_size == count:
            return np.arange(count)
        drawn = stream(self.seed, "cohort", round).choice(count, self.cohort_size, replace=False)
        return np.sort(drawn)

    def batch(self, client: int, round: int) -> ClientBatches:
        """What a client sees in a round."""
        key = {"seed": self.seed, "client": client, "round": round}
        rows = federated_rows(self.rows[client], **key, steps=self.steps[client], batch_size=self.batch_size)
        return self.images.draw(rows, **key)

    def weights(self, cohort: Rows) -> ClientWeights:
        """The weights of these participants."""
        sizes = [len(self.rows[client]) for client in cohort]
        share = [size / sum(sizes) for size in sizes]
        deltas = self.method.delta_weights(share, [self.steps[client] for client in cohort], self.momentum)
        return ClientWeights(share, deltas, self.method.message_weights(share))


def sample_rounds(runs: Sequence[Sampler], rounds: Sequence[int]) -> Tree:
    """One round of each run as tensors on the CPU, the participants of all runs side by side.

    Returns:
        ``cohort_N``: each participant's number in its run;
        ``rows_NEB``: its rows, E the most steps of all and what it does not take filled with row 0;
        ``crops_NEB3``, if images are augmented: mirrored or not, row and column of the crop;
        ``weights_4N``: share of the samples, weights of change and message, number of steps.
    """
    cohorts = [run.cohort(round) for run, round in zip(runs, rounds, strict=True)]
    members = [(run, round, int(k)) for run, round, cohort in zip(runs, rounds, cohorts, strict=True) for k in cohort]
    batches = [run.batch(k, round) for run, round, k in members]
    weights = [run.weights(cohort) for run, cohort in zip(runs, cohorts, strict=True)]
    rows = [
        [share for each in weights for share in each.share],
        [weight for each in weights for weight in each.deltas],
        [weight for each in weights for weight in each.messages],
        [len(batch.rows_EB) for batch in batches],
    ]
    weights_4N = torch.tensor(rows, dtype=torch.float64)
    return {"cohort_N": torch.from_numpy(np.concatenate(cohorts)), "weights_4N": weights_4N, **stack_batches(batches)}


def stack_batches(batches: Sequence[ClientBatches]) -> Tree:
    """``rows_NEB`` and ``crops_NEB3`` of ``sample_rounds`` for the batches of N clients."""
    steps = max(len(batch.rows_EB) for batch in batches)
    given = {"rows_NEB": np.stack([_filled(batch.rows_EB, steps) for batch in batches])}
    choices = [_choices(batch.crops).reshape(*batch.rows_EB.shape, 3) for batch in batches if batch.crops is not None]
    if choices:
        given["crops_NEB3"] = np.stack([_filled(own, steps) for own in choices])
    return {name: torch.from_numpy(array) for name, array in given.items()}


def _choices(crops: Crops) -> Rows:
    """Mirrored or not, row and column: (M, 3)."""
    return np.concatenate([crops.flip.numpy()[:, None], crops.offset.numpy()], axis=1)


def _filled(array: Rows, steps: int) -> Rows:
    """With zeros for the steps that a client does not take: they leave no trace, whatever is in them."""
    return array if len(array) == steps else np.pad(array, [(0, steps - len(array)), *[(0, 0)] * (array.ndim - 1)])


class Prefetcher:
    """Rounds of several runs, drawn ahead in threads and brought to the device without waiting for it."""

    def __init__(self, runs: Sequence[Sampler], device: torch.device) -> None:
        self._runs, self._device = runs, device
        self._drawn: deque[tuple[tuple[int, ...], Future[Tree]]] = deque()
        self._pool = ThreadPoolExecutor(THREADS, "draws")  # its threads never touch the device

    def next(self, rounds: tuple[int, ...]) -> Tree:
        """What ``sample_rounds`` returns, on the device; fast if the last call was for the round before of each run."""
        if self._drawn and self._drawn[0][0] != rounds:
            self._drawn.clear()
        while len(self._drawn) <= ROUNDS_AHEAD:
            coming = tuple(round + len(self._drawn) for round in rounds)
            self._drawn.append((coming, self._pool.submit(sample_rounds, self._runs, coming)))
        return on_device(self._drawn.popleft()[1].result(), self._device)


def on_device(tree: Tree, device: torch.device) -> Tree:
    """The tree, copied to a GPU without waiting for it."""
    if device.type == "cpu":
        return tree
    # Only from pinned memory is a copy queued and not waited for; torch reuses that memory once it is copied.
    return {name: leaf.pin_memory().to(device, non_blocking=True) for name, leaf in tree.items()}
