"""A pass over clients' own data in which layers observe their inputs (``models.observers``).

Participants take it before their local steps, at the weights that they received. What the layers note in their buffers
is sent and averaged as other buffers are.

Shape suffixes: N clients (absent for one), B batch, Y classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor

from flbench.engine.device_data import OwnBatch
from flbench.engine.gradients import Passes, autocast, evaluating
from flbench.methods.base import Tree, tmap
from flbench.models.observers import Observation, observers


def observed(
    observation: Observation,
    passes: Passes,
    model: tuple[Tree, Tree],
    own: Iterable[OwnBatch],
    counts_Y: Tensor,
    dtype: torch.dtype | None,
) -> Tree:
    """Return the buffers after the pass.

    Args:
        observation: what layers observe.
        passes: the network, in training mode.
        model: its parameters and its buffers, with frozen parameters among the latter.
        own: the clients' training data.
        counts_Y: their training samples of each class, (Y,) or (N, Y).
        dtype: of mixed precision, or None.
    """
    params, buffers = model[0], tmap(torch.clone, model[1])
    with evaluating([passes.network]), autocast(counts_Y.device, dtype):
        for layer in observers(passes.network):
            layer.train()
        for images, _, there_B in islice(own, None if observation.all else 1):
            weights = {
                name: there_B.to(buffers[name].dtype) / counts_Y.sum(-1, keepdim=True) for name in observation.weights
            }
            passes.forward(params, {**buffers, **weights}, images)
    return buffers
