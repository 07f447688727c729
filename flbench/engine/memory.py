"""What fits: recognising that memory has run out, and foreseeing what training takes of it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

#: How torch's CPU allocator, cuBLAS and cuDNN say it.
ALLOCATION_FAILED = ("DefaultCPUAllocator: can't allocate memory", "_STATUS_ALLOC_FAILED")

#: Of the memory that is free on a GPU, what stacks of clients may take; the rest is for workspaces and fragments.
SHARE = 0.7

#: Tensors as large as all of a client's weights at once: beginning, weights, leaves' gradients, direction, velocity,
#: state, message, end.
COPIES = 8

#: Activations at once in units of those that the backward pass keeps: their gradients, and what is copied on the way.
KEPT = 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch could not allocate, on a GPU or on a CPU; also where that spoiled the recording of a graph."""
    if isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in ALLOCATION_FAILED):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and is_out_of_memory(cause)


def client_bytes(network: nn.Module, image: tuple[int, int, int], batch_size: int) -> int:
    """About how many bytes the local training of one client takes.

    Counted on a forward pass over two images: what torch keeps for the backward pass, scaled to a batch.
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


def fitting(network: nn.Module, image: tuple[int, int, int], batch_size: int) -> int:
    """How many clients are worth one stack on the current GPU: as many as its free memory holds, at least one."""
    reusable = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free = torch.cuda.mem_get_info()[0] + reusable
    return max(1, int(SHARE * free) // client_bytes(network, image, batch_size))
