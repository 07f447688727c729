"""How many clients fit into a GPU's memory."""

from __future__ import annotations

import copy
import gc

import torch
from torch import Tensor, nn

#: Share of a GPU's free memory that a stack of clients may use. Recorded graphs keep that much in a pool of their own;
#: computations beside them (a trial of the next recording, a round whose clients a probe needs) use as much again
#: outside of the pool; the rest is for workspaces and fragmentation.
SHARE = 0.35

#: Tensors as large as all of a client's weights that exist at once: initial weights, weights, gradients, direction,
#: velocity, state, message, result.
COPIES = 8

#: Activations that exist at once, in units of those that the backward pass keeps: themselves and their gradients.
KEPT = 2


def client_bytes(network: nn.Module, image: tuple[int, int, int], batch_size: int) -> int:
    """Return an estimate of the bytes that the local training of one client needs.

    Counts what torch keeps for the backward pass of two images, scaled to a batch.
    """
    network = copy.deepcopy(network)  # batch normalization updates its statistics
    weights = [*network.parameters(), *network.buffers()]
    own = {leaf.untyped_storage().data_ptr() for leaf in weights}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    samples = 2
    like = next(network.parameters())
    # The graph of this pass lives until the end of the count, so that no storage comes twice.
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = network(torch.zeros(samples, *image, dtype=like.dtype, device=like.device))
    activations = sum(kept.values()) / samples * batch_size
    del outputs
    model = sum(leaf.numel() * leaf.element_size() for leaf in weights)
    return int(KEPT * activations + COPIES * model)


def clients_that_fit(network: nn.Module, image: tuple[int, int, int], batch_size: int, neighbours: int = 1) -> int:
    """Return how many clients fit into one stack on the current GPU, at least one.

    Args:
        network: a client's network, on the GPU.
        image: (C, H, W).
        batch_size: samples in a batch.
        neighbours: processes that share the GPU, this one among them.
    """
    each = client_bytes(network, image, batch_size)
    # Return unused memory to the driver. What torch still holds is in use or belongs to the pool of existing graphs,
    # where no stack could be allocated, so it does not count as free.
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return max(1, int(SHARE * free / neighbours) // each)
