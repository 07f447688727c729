"""The torch module of a described model, its initial weights and its call as a pure function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from flbench.models.base import Model, Shape, Site
from flbench.models.layers import Dense, Flatten, StackableLayer
from flbench.models.norms import Norm
from flbench.streams import stream

Tree = dict[str, Tensor]

#: (parameters, buffers, images (B, C, H, W)) to (features (B, D), logits (B, Y)); stacked: a leading axis everywhere.
Forward = Callable[[Tree, Tree, Tensor], tuple[Tensor, Tensor]]


class Network(StackableLayer):
    """Stages in order and a linear head; returns (features, logits)."""

    def __init__(self, model: Model, image: Shape, classes: int, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential()
        for number, step in enumerate(model.steps(image), start=1):
            for kind, layer in step.modules(norm, bias):
                self.trunk.add_module(f"{kind}{number}", layer)
        shape = model.output(image)
        if len(shape) == 3:
            self.trunk.add_module("flatten", Flatten())
        features = math.prod(shape)
        self.feature = norm.layer(Site("feature", (features,))) or nn.Sequential()
        self.head = Dense(features, classes, bias=model.head_has_bias(bias))
        self.logits = norm.layer(Site("logits", (classes,))) or nn.Sequential()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images_BCHW to (features_BD, logits_BY)."""
        features = self.feature(self.trunk(images))
        return features, self.logits(self.head(features))


def build(
    model: Model, image: Shape, classes: int, norm: Norm, bias: bool, *, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return a network whose initial weights depend only on the seed and on the network itself.

    Each module runs torch's own ``reset_parameters`` with torch's CPU generator keyed by (seed, module name). Layers
    that two networks share therefore start equal, whatever else (a norm) stands between them. Weights that no module
    resets (a parameter that the model itself creates) keep what ``model.build`` drew, after a seed of its own. The
    generator's state is restored at the end.
    """
    with torch.random.fork_rng(devices=[]):
        _seed_torch(seed, "build")
        network = model.build(image, classes, norm.canonical(), bias)
        for name, module in network.named_modules():
            # Attention and transformers of torch have only the private form.
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if reset is not None:
                _seed_torch(seed, f"init/{name}")
                reset()
    return network.to(dtype=dtype)


@lru_cache(1000)  # asked for every experiment of a sweep
def unchanged_by(model: Model, norm: Norm, image: Shape, classes: int) -> str | None:
    """Why a network that its model builds itself cannot have a norm: the same modules without it, or an error."""
    try:
        with torch.random.fork_rng(devices=[]):
            networks = [model.build(image, classes, one, False) for one in (norm, Norm())]
    except (ValueError, RuntimeError) as error:
        return f"the network cannot be built with it: {error}"
    # By name: a class that ``build`` itself defines is another one each time.
    with_norm, without = ([(name, type(one).__qualname__) for name, one in net.named_modules()] for net in networks)
    same = "the network has the same layers without it, so that it would change nothing: use norm: none"
    return same if with_norm == without else None


def _seed_torch(seed: int, purpose: str) -> None:
    # torch.manual_seed would seed the GPU's generators, too, which are not restored.
    torch.default_generator.manual_seed(int(stream(seed, purpose).integers(2**63)))


def pure_forward(network: nn.Module) -> Forward:
    """One client's forward pass as a function of its tensors. Not for two threads at once: one network a thread.

    What ``torch.func.functional_call`` does, with the places of all tensors looked up once: that call's own search
    takes a tenth of a small network's step.
    """
    places = _places(network)
    own = {name: tensors[key] for name, ((tensors, key), *_) in places.items()}

    def put(tree: Tree) -> None:
        for name, leaf in tree.items():
            for tensors, key in places[name]:
                tensors[key] = leaf

    def forward(params: Tree, buffers: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
        put(params)
        put(buffers)
        try:
            out: tuple[Tensor, Tensor] = network(images)
        finally:
            put(own)
        return out

    return forward


def _places(network: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Where each named tensor hangs, as (module's dict, key): in several places for tied weights, under one name."""
    places: dict[str, list[tuple[dict[str, Any], str]]] = {}
    names: dict[int, str] = {}
    for path, module in network.named_modules():
        for tensors in (module._parameters, module._buffers):
            for key, leaf in tensors.items():
                if leaf is not None:
                    name = names.setdefault(id(leaf), f"{path}.{key}" if path else key)
                    places.setdefault(name, []).append((tensors, key))
    return places


def stacked_forward(network: nn.Module) -> Forward:
    """The forward pass of a stack of clients: native where every layer can, else mapped by ``torch.func.vmap``."""
    forward = pure_forward(network)
    if all(isinstance(module, StackableLayer) for module in network.modules() if not isinstance(module, nn.Sequential)):
        return forward
    mapped: Forward = vmap(forward)
    return mapped
