"""Fine-tuning of the evaluated models on each client, which measures how well they can be personalized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from flbench.engine.clients import ChunkJob, ClientInit, ClientTask
from flbench.engine.device_data import on_device, side_by_side
from flbench.engine.run import Run
from flbench.methods.base import Method, Tree

#: The parameters and buffers of a network.
Model = tuple[Tree, Tree]


def finetuned(run: Run, model: Callable[[int], Model], steps: int, round: int) -> Iterator[Model]:
    """Yield each client's model after fine-tuning, in order; nothing that training depends on changes.

    Fine-tuning is local training with the hooks of FedAvg: SGD (or the run's optimizer) on the cross-entropy, from a
    new optimizer state, at the rate of the coming round and on the batches that the client would see in it.

    Args:
        run: the run.
        model: returns the evaluated model of a client.
        steps: steps of each client.
        round: rounds done.
    """
    setup, clients = run.setup, len(run.rows)
    tuned = replace(run, method=Method(), steps=[steps] * clients)
    device = run.counts_NY.device

    def job(positions: slice) -> ChunkJob:
        own = range(positions.start, positions.stop)
        params, buffers = (_stacked(trees) for trees in zip(*map(model, own), strict=True))
        init = ClientInit(
            params=params,
            buffers=buffers,
            velocity={},
            state={},
            counts_Y=run.counts_NY[positions],
            steps=steps,
            relative_size=torch.ones(len(own), dtype=setup.images.dtype, device=device),
        )
        task = ClientTask(
            method=tuned.method,
            sgd=replace(setup.sgd.in_round(round), kept=False),
            x={},
            server={},
            autocast=setup.autocast,
            round=round,
            head=run.head,
            frozen=run.frozen,
        )
        drawn = on_device(side_by_side([tuned.batch(client, round) for client in own]), device)
        return ChunkJob(task, init, setup.images.stack(drawn))

    for positions, result in setup.executor.train(clients, job):
        for row, client in enumerate(range(positions.start, positions.stop)):
            trees = result.params, result.buffers
            params, moved = ({name: leaf[row] for name, leaf in tree.items()} for tree in trees)
            yield params, {**model(client)[1], **moved}


def _stacked(trees: tuple[Tree, ...]) -> Tree:
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
