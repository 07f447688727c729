"""How many clients fit into a GPU's memory."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from flbench.engine.device_data import OWN_BATCH
from flbench.engine.hook_checks import checked
from flbench.methods.base import Context, Method, overrides
from flbench.models.convolutions import window_numbers
from flbench.models.frozen import frozen_names, initial_trees
from flbench.models.layers import Conv
from flbench.models.network import head_weight
from flbench.models.sites import Shape
from flbench.models.token_layers import blank_batch

#: Share of a GPU's free memory that a stack of clients may use. Recorded graphs keep that much in a pool of their own;
#: computations beside them (a trial of the next recording, a round whose clients a probe needs) use as much again
#: outside of the pool; the rest is for workspaces and fragmentation.
SHARE = 0.35

#: Tensors as large as all of a client's weights that exist at once: initial weights, weights, gradients, direction,
#: velocity, state, message, result. Each teacher adds one.
COPIES = 8

#: The same for a second set of weights: its own initial weights, and the first's weights, velocity and message, which
#: wait until it is trained.
TWIN_COPIES = 4

#: Tensors as large as the covariances of all classes, in float64: two sums, products, covariances, result, message.
MOMENTS = 6

#: Activations that exist at once, in units of those that the backward pass keeps: themselves and their gradients.
KEPT = 2


def client_bytes(network: nn.Module, image: Shape, batch_size: int, method: Method) -> int:
    """Return an estimate of the bytes that the local training of one client needs.

    Counts what torch keeps for the backward pass of two images, scaled to a batch. Of each teacher it counts the
    weights and the outputs: its pass keeps nothing for a backward pass, and ends before the student's begins.
    Parameters that the method adds count as the network's own; a second set of weights is trained after the first.
    Of the windows that ``unfolded`` convolutions copy it counts those of one layer, as each drops its own.
    """
    network, method = copy.deepcopy(network), checked(method)  # batch normalization updates its statistics
    weights, fixed = [*network.parameters(), *network.buffers()], frozen_names(network)
    own = {leaf.untyped_storage().data_ptr() for leaf in weights}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    windows = [0]

    def note_windows(layer: Conv, inputs: tuple[Tensor]) -> None:
        (x,) = inputs
        windows.append(window_numbers(x.shape[1:], layer.weight.shape, *layer.window, of_images=x.requires_grad))

    for layer in network.modules():
        if isinstance(layer, Conv):
            layer.register_forward_pre_hook(note_windows)
    samples = 2
    like = next(network.parameters())
    # The graph of this pass lives until the end of the count, so that no storage comes twice.
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = network(blank_batch(samples, image, like))
    activations = sum(kept.values()) / samples * batch_size  # exact: whole numbers
    frozen = _bytes(leaf for name, leaf in initial_trees(network)[1].items() if name in fixed)
    model, taught = _bytes(weights) - frozen, _bytes(outputs) / samples * batch_size
    added = _bytes(method.extra(initial_trees(network)[0], head_weight(network)).values())
    twin = cast("Method | None", method.twin())
    features, classes = (leaf.shape[-1] for leaf in outputs)
    del outputs
    moments = 8 * classes * features * max(features, OWN_BATCH) if method.statistics == "covariance" else 0
    copies, teachers = COPIES, teacher_count(method, network)
    if twin is not None:
        copies, teachers = COPIES + TWIN_COPIES, max(teachers, teacher_count(twin, network))
    trained = KEPT * activations + copies * model + COPIES * added + frozen + teachers * (model + taught)
    return int(trained + MOMENTS * moments + max(windows) * batch_size * like.element_size())


def teacher_count(method: Method, network: nn.Module) -> int:
    """Return how many teachers a client of the method has in its first round."""
    if not overrides(type(method), "teachers"):
        return 0
    method = checked(method)
    x, others = initial_trees(network)
    buffers = {name: leaf for name, leaf in others.items() if name not in frozen_names(network)}
    start, server = method.broadcast(x, method.init_server(x))
    one = torch.ones((), device=next(network.parameters()).device)
    numbers: dict[str, Any] = {"lr": 1.0, "steps": 1, "relative_size": one, "round": 0}
    client, head = method.init_client(x, buffers), head_weight(network)
    counts_Y = one.expand(len({**x, **others}[head])) if head else one.view(1)
    return len(method.teachers(Context(start, server, client, counts_Y, **numbers, head=head, buffers=buffers)))


def clients_that_fit(network: nn.Module, image: Shape, batch_size: int, method: Method, neighbours: int = 1) -> int:
    """Return how many clients fit into one stack on the current GPU, at least one.

    Args:
        network: a client's network, on the GPU.
        image: shape of a sample, as (C, H, W).
        batch_size: samples in a batch.
        method: the clients' method.
        neighbours: processes that share the GPU, this one among them.
    """
    each = client_bytes(network, image, batch_size, method)
    # Return unused memory to the driver. What torch still holds is in use or belongs to the pool of existing graphs,
    # where no stack could be allocated, so it does not count as free.
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return max(1, int(SHARE * free / neighbours) // each)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors)  # exact: whole numbers
