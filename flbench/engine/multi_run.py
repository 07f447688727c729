"""Several runs trained as one computation: the clients of all of them in one stack.

Clients do not share anything, in one run or in several, so every run has the numbers that it has alone: to the bit on a
CPU, where torch computes each matrix of a batch and each element on its own. What differs between runs (server
parameters, learning rate, hyperparameters) travels with each client.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from flbench.engine.cuda_round import rows_of
from flbench.engine.federated import FederatedTrainer, train_whole
from flbench.engine.trainer import RoundReport


def step_together(
    trainers: Sequence[FederatedTrainer], keep_clients: Sequence[bool], *, wait: bool = True
) -> list[RoundReport]:
    """One round of each run.

    Args:
        trainers: of runs with one method, norm, model, data set and shape of batches.
        keep_clients: for each run, whether its report holds what the participants sent.
        wait: as in ``Trainer.step``.
    """
    began = time.perf_counter()
    train = _train_chunks if trainers[0].record is None else partial(train_whole, wait=wait)
    reports = train(trainers, keep_clients)
    seconds = (time.perf_counter() - began) / len(trainers)
    for trainer, report in zip(trainers, reports, strict=True):
        trainer.count_round(report, seconds)
    return reports


def _train_chunks(trainers: Sequence[FederatedTrainer], keep_clients: Sequence[bool]) -> list[RoundReport]:
    rounds = [trainer.begin_round(keep) for trainer, keep in zip(trainers, keep_clients, strict=True)]
    owners = [(number, place) for number, round in enumerate(rounds) for place in range(len(round.clients))]
    for chunk in trainers[0].executor.train([client for round in rounds for client in round.clients]):
        for number, places, rows in _by_run([owners[position] for position in chunk.positions]):
            rounds[number].add(places, rows_of(chunk.finish, rows))
    return [trainer.end_round(round) for trainer, round in zip(trainers, rounds, strict=True)]


def _by_run(owners: Sequence[tuple[int, int]]) -> list[tuple[int, range, slice]]:
    """The runs that a chunk's rows belong to: run, positions in its cohort, rows of the chunk."""
    parts = []
    begin = 0
    for end in range(1, len(owners) + 1):
        if end == len(owners) or owners[end][0] != owners[begin][0]:
            number, first = owners[begin]
            parts.append((number, range(first, first + end - begin), slice(begin, end)))
            begin = end
    return parts
