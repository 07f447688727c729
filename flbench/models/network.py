"""The torch module of a described model, its initial weights and its call as a pure function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from flbench.models.base import Conv, Model, Shape, Site
from flbench.models.layers import Conv as ConvLayer
from flbench.models.layers import Dense as DenseLayer
from flbench.models.layers import Pool, StackableLayer
from flbench.models.norms import Norm
from flbench.streams import stream

Tree = dict[str, Tensor]

#: (parameters, buffers, images (B, C, H, W)) to (features (B, D), logits (B, Y)); stacked: a leading axis everywhere.
Forward = Callable[[Tree, Tree, Tensor], tuple[Tensor, Tensor]]


class Relu(StackableLayer):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return F.relu(x)


class Flatten(StackableLayer):
    """(..., C, H, W) to (..., C * H * W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Join the last three axes."""
        return x.flatten(-3)


class Network(StackableLayer):
    """Stages in order and a linear head; returns (features, logits)."""

    def __init__(self, model: Model, image: Shape, classes: int, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential()
        stages = model.stages()
        shape = image
        for number, stage in enumerate(stages, start=1):
            activation, last = stage.activation(shape), number == len(stages)
            if isinstance(stage, Conv):
                self.trunk.add_module(f"conv{number}", ConvLayer(shape[0], stage.out, stage.kernel, bias=bias))
            else:
                if len(shape) == 3:
                    self.trunk.add_module(f"flatten{number}", Flatten())
                    shape = (shape[0] * shape[1] * shape[2],)
                self.trunk.add_module(f"dense{number}", DenseLayer(shape[0], stage.out, bias=bias))
            before = norm.layer(Site("before", last, activation))
            after = norm.layer(Site("after", last, activation))
            pool = Pool(stage.pool) if isinstance(stage, Conv) and stage.pool > 1 else None
            # max commutes with the monotone ReLU, bit for bit, and pooling first leaves a quarter of the work;
            # not so where a norm stands between them.
            tail = (
                [("pool", pool), ("relu", Relu())]
                if after is None
                else [("relu", Relu()), ("after", after), ("pool", pool)]
            )
            for kind, layer in [("before", before), *tail]:
                if layer is not None:
                    self.trunk.add_module(f"{kind}{number}", layer)
            shape = stage.output(shape)
        if len(shape) == 3:
            self.trunk.add_module("flatten", Flatten())
            shape = (shape[0] * shape[1] * shape[2],)
        self.head = DenseLayer(shape[0], classes, bias=bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images_BCHW to (features_BD, logits_BY)."""
        features = self.trunk(images)
        return features, self.head(features)


def build(
    model: Model, image: Shape, classes: int, norm: Norm, bias: bool, *, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A network with initial weights that depend only on the seed and on each module's name.

    Each module runs torch's own ``reset_parameters`` under a CPU generator keyed by (seed, module name). Layers that
    two networks share therefore start equal, whatever else (a norm) stands between them.
    """
    with torch.random.fork_rng(devices=[]):
        network = model.build(image, classes, norm, bias)
        for name, module in network.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                torch.manual_seed(int(stream(seed, f"init/{name}").integers(2**63)))
                reset()
    return network.to(dtype=dtype)


def pure_forward(network: nn.Module) -> Forward:
    """One client's forward pass as a function of its tensors. Not for two threads at once: one network a thread."""
    tied = len(list(network.named_parameters())) < len(list(network.named_parameters(remove_duplicate=False)))

    def forward(params: Tree, buffers: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
        # Looking for tied weights costs a tenth of a small network's step: it is done once.
        out: tuple[Tensor, Tensor] = functional_call(network, (params, buffers), (images,), tie_weights=tied)
        return out

    return forward


def stacked_forward(network: nn.Module) -> Forward:
    """The forward pass of a stack of clients: native where every layer can, else mapped by ``torch.func.vmap``."""
    forward = pure_forward(network)
    if all(isinstance(module, StackableLayer) for module in network.modules() if not isinstance(module, nn.Sequential)):
        return forward
    mapped: Forward = vmap(forward)
    return mapped
