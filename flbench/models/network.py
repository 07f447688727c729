"""The torch module of a model that is described by stages, and any network as a pure function of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from torch.func import vmap

from flbench.errors import UserError
from flbench.models.frozen import frozen_names
from flbench.models.heads.base import Head, is_of_head
from flbench.models.layers import Flatten, StackableLayer
from flbench.models.masks import is_masked
from flbench.models.norms.base import Norm
from flbench.models.sites import Shape, Site
from flbench.models.stages import Step

Tree = dict[str, Tensor]

#: (parameters, buffers, images (B, C, H, W)) to (features (B, D), logits (B, Y)); stacked: a leading axis everywhere.
Forward = Callable[[Tree, Tree, Tensor], tuple[Tensor, Tensor]]

#: The server's buffers during a round and after averaging, to those that differ in the next round.
BufferUpdate = Callable[[Tree, Tree], Tree]


class Network(StackableLayer):
    """Stages in order and a head; returns (the input of its last layer, logits).

    Args:
        steps: the stages, each with the shape of its input.
        output: shape of one sample after the last stage; flattened, it is the head's input.
        classes: outputs of the head.
        head: from the features to the logits.
        norm: the normalization at every site.
        bias: whether the stages' weight layers have a bias; ``head_bias``: whether the head has one.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        output: Shape,
        classes: int,
        norm: Norm,
        head: Head,
        *,
        bias: bool,
        head_bias: bool,
    ) -> None:
        super().__init__()
        self.trunk = nn.Sequential()
        for number, step in enumerate(steps, start=1):
            for kind, layer in step.stage.modules(step.shape, step.last, norm, bias):
                self.trunk.add_module(f"{kind}{number}", layer)
        if len(output) == 3:
            self.trunk.add_module("flatten", Flatten())
        features = math.prod(output)
        # None where there is no layer: calling an empty module takes a noticeable part of a small network's step.
        self.feature = norm.layer(Site("feature", (features,)))
        self.projection = head.projection(features, bias)
        self.head = head.layer(head.width(features), classes, head_bias)
        self.logits = norm.layer(Site("logits", (classes,)))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images_BCHW to (features_BD, logits_BY)."""
        features = self.trunk(images)
        if self.feature is not None:
            features = self.feature(features)
        if self.projection is not None:
            features = self.projection(features)
        logits = self.head(features)
        return features, logits if self.logits is None else self.logits(logits)


def pure_forward(network: nn.Module) -> Forward:
    """Return one client's forward pass as a function of its tensors. Each thread needs a network of its own.

    It does what ``torch.func.functional_call`` does, with the places of all tensors looked up once: that call's own
    search takes a tenth of a small network's step.
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


def head_weight(network: nn.Module) -> str:
    """Return the name of the weight (Y, D) of the module ``head``; an empty string if the network has none."""
    names = {*dict(network.named_parameters()), *dict(network.named_buffers())}
    return "head.weight" if "head.weight" in names else ""


def head_names(network: nn.Module) -> frozenset[str]:
    """Return the names of the parameters and buffers of the head (``is_of_head``), with weights of the shape (Y, D).

    Raises:
        UserError: the network has no such module.
    """
    if not head_weight(network):
        raise UserError(
            "the network has no head that flbench can find, which the method needs: name its last linear layer `head`"
        )
    names = [*dict(network.named_parameters()), *dict(network.named_buffers())]
    return frozenset(filter(is_of_head, names))


#: The attributes under which layers list names of their tensors.
Listed = Literal["constants", "local", "shares", "unshared", "observes"]


def buffers_that_are(kind: Listed, network: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that the layers list under this attribute; those of frozen parts are constant."""
    listed = frozenset(
        f"{path}.{name}" if path else name
        for path, module in network.named_modules()
        if isinstance(module, StackableLayer)
        for name in getattr(module, kind)
    )
    return listed | frozen_names(network) if kind == "constants" else listed - frozen_names(network)


def buffer_updates(network: nn.Module) -> tuple[BufferUpdate, ...]:
    """Return the ``after_round`` of every layer that has one and no frozen statistics, for the network's buffers."""
    frozen = frozen_names(network)
    return tuple(
        partial(_updated, f"{path}." if path else "", module)
        for path, module in network.named_modules()
        if isinstance(module, StackableLayer) and type(module).after_round is not StackableLayer.after_round
        if not any(f"{path}.{name}" in frozen for name, _ in module.named_buffers(recurse=False))
    )


def _updated(prefix: str, layer: StackableLayer, before: Tree, averaged: Tree) -> Tree:
    """One layer's part; nothing where its buffers stay on the clients."""
    names = [name for name, _ in layer.named_buffers(recurse=False)]
    if any(prefix + name not in before for name in names):
        return {}
    own = ({name: tree[prefix + name] for name in names} for tree in (before, averaged))
    return {prefix + name: leaf for name, leaf in layer.after_round(*own).items()}


def _places(network: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """The places of each named tensor, as (module's dict, key); tied weights have several places under one name."""
    places: dict[str, list[tuple[dict[str, Any], str]]] = {}
    names: dict[int, str] = {}
    for path, module in network.named_modules():
        for tensors in (module._parameters, module._buffers):
            for key, leaf in tensors.items():
                if leaf is not None:
                    name = names.setdefault(id(leaf), f"{path}.{key}" if path else key)
                    places.setdefault(name, []).append((tensors, key))
        if is_masked(module):
            places[f"{path}.mask_key" if path else "mask_key"] = [(vars(module), "mask_key")]
    return places


def stacked_forward(network: nn.Module) -> Forward:
    """Return the forward pass of a stack of clients: native if every layer can, else mapped by ``torch.func.vmap``."""
    forward = pure_forward(network)
    if all(isinstance(module, StackableLayer) for module in network.modules() if not isinstance(module, nn.Sequential)):
        return forward
    mapped: Forward = vmap(forward)
    return mapped
