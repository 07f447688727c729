"""Networks with initial weights that depend on the seed and on the network alone."""

from __future__ import annotations

import torch
from torch import nn

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

    ``model.build`` runs with torch's CPU generator keyed by the seed. If the model leaves its initial weights to the
    layers (``Model.initialized_by``), each module then runs torch's own ``reset_parameters`` with a generator keyed by
    (seed, module name), so layers that two networks share have equal initial weights, whatever norms are between them.
    The generator's state is restored at the end. Without a ``head`` it is linear.

    Modules with buffers inside a frozen part stay in evaluation mode (``frozen``).

    Raises:
        UserError: no parameter of the network is trained.
    """
    with torch.random.fork_rng(devices=[]):
        _seed_torch(seed, "build")
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
    if not any(leaf.requires_grad for leaf in network.parameters()):
        raise UserError(f"model {model.label()}: no parameter has requires_grad=True, so that nothing is trained")
    adapt(network)
    keep_frozen_statistics(network)
    return network.to(dtype=dtype)


def _seed_torch(seed: int, purpose: str) -> None:
    # torch.manual_seed would also seed the GPU's generators, which are not restored.
    torch.default_generator.manual_seed(int(stream(seed, purpose).integers(2**63)))
