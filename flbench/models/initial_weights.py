"""Networks with initial weights that depend on the seed and on the network alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from flbench.errors import UserError
from flbench.models.base import Model
from flbench.models.frozen import keep_frozen_statistics
from flbench.models.heads.base import Head
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape
from flbench.models.torch_layers import adapt
from flbench.streams import stream


def build(
    model: Model,
    image: Shape,
    classes: int,
    norm: Norm,
    bias: bool,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    head: Head | None = None,
) -> nn.Module:
    """Return a network whose initial weights depend only on the seed and on the network itself.

    ``model.build`` runs with the default generators of torch (CPU), numpy and Python keyed by the seed. If the model
    leaves its initial weights to the layers (``Model.initialized_by``), each module then runs torch's own
    ``reset_parameters`` with a generator keyed by (seed, module name), so layers that two networks share have equal
    initial weights, whatever norms are between them. The generators' states are restored at the end. Without a
    ``head`` it is linear.

    Modules with buffers inside a frozen part stay in evaluation mode (``frozen``).

    Raises:
        UserError: no parameter of the network is trained, or one has no shape yet.
    """
    with _default_generators_restored():
        _seed_torch(seed, "build")
        np.random.seed(int(stream(seed, "build/numpy").integers(2**32)))
        random.seed(int(stream(seed, "build/python").integers(2**63)))
        if head is None or type(head) is Head:  # a model that builds itself knows no other
            network = model.build(image, classes, norm.canonical(), bias)
        else:
            network = model.network(image, classes, norm.canonical(), bias, head)
        for name, module in network.named_modules() if model.initialized_by() == "layers" else ():
            # Attention and transformers of torch have only the private form.
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if reset is not None:
                _seed_torch(seed, f"init/{name}")
                reset()
    for name, leaf in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(leaf):
            raise UserError(f"model {model.label()}: {name} has no shape yet; pass images through the layer in build")
    if not any(leaf.requires_grad for leaf in network.parameters()):
        raise UserError(f"model {model.label()}: no parameter has requires_grad=True, so that nothing is trained")
    adapt(network)
    keep_frozen_statistics(network)
    return network.to(dtype=dtype)


@contextmanager
def _default_generators_restored() -> Iterator[None]:
    states = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])


def _seed_torch(seed: int, purpose: str) -> None:
    # torch.manual_seed would also seed the GPU's generators, which are not restored.
    torch.default_generator.manual_seed(int(stream(seed, purpose).integers(2**63)))
