"""The statistics with which a network is evaluated whose layers observe the clients' data: those at its last weights.

What participants observe before their local steps (``observed``) belongs to the weights that they received. For an
evaluation the last participants take one more pass, at the weights that they have helped to train. It changes nothing
that training depends on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from flbench.engine.gradients import Passes
from flbench.engine.observed import observed
from flbench.engine.run import Run, own_batches
from flbench.engine.tree_sums import is_averaged
from flbench.methods.base import Tree
from flbench.models.network import pure_forward
from flbench.models.observers import Observation


def final_statistics(
    run: Run,
    observation: Observation,
    network: nn.Module,
    buffers: Tree,
    model: Callable[[int], tuple[Tree, Tree]],
    round: int,
) -> Tree:
    """Return the shared buffers as the server has them after a pass of the participants of a round.

    Args:
        run: the run.
        observation: what layers observe.
        network: a network that no other thread uses; its own tensors are never read.
        buffers: the shared buffers.
        model: returns the parameters and buffers of a client.
        round: the round whose participants take the pass.
    """
    passes, cohort = Passes(network, pure_forward(network)), run.cohort(round)
    moving = [name for name, leaf in buffers.items() if name not in run.constants and is_averaged(leaf)]
    averaged = buffers | {name: torch.zeros_like(buffers[name]) for name in moving}
    network.train()
    for client, share in zip(cohort, run.weights(cohort, run.steps_of(cohort, round))[0].tolist(), strict=True):
        counts_1Y = run.counts_NY[client : client + 1]
        number_1 = torch.tensor([client], device=counts_1Y.device)
        batches = own_batches([(run, number_1)], counts_1Y.sum(-1), known=True)
        own = ((images[0], labels[0], there[0]) for images, labels, there in batches)
        seen = observed(observation, passes, model(int(client)), own, counts_1Y[0], run.setup.autocast)
        averaged |= {name: averaged[name] + share * seen[name] for name in moving}
    for update in run.buffer_updates:
        averaged |= update(buffers, averaged)
    return averaged
