"""Choose which parameters of a network train (the field ``train``); all others become constants (``frozen``).

Adapters of low rank (LoRA, @hu2022lora) are added here: a layer with a weight W of the shape (out, ...) then
computes with W + B A, A (rank, fan-in) and B (out, rank). W stays as it is. B starts at zero, so that the network is
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from flbench.config.trained_parts import ALL, HEAD, LORA, NORM
from flbench.errors import UserError
from flbench.messages import by_similarity, did_you_mean
from flbench.models.frozen import keep_frozen_statistics
from flbench.models.heads.base import is_of_head
from flbench.models.norm_layers import Normalization
from flbench.streams import stream

#: Parameter names that a message lists.
_MOST_NAMES = 8


def train_only(network: nn.Module, train: str, seed: int) -> None:
    """Freeze what ``train`` does not name, and add the adapters that it names, which are drawn from ``seed``.

    What the model itself has frozen stays frozen.

    Raises:
        UserError: a part names no parameter that the model trains; it says which names are similar.
    """
    if train == ALL:
        return
    trained = {name: leaf for name, leaf in network.named_parameters() if leaf.requires_grad}
    chosen: set[str] = set()
    rank = 0
    for part in train.split("+"):
        if part.startswith(f"{LORA}:"):
            rank = int(part.partition(":")[2])
        elif found := _named(network, part, trained):
            chosen |= found
        else:
            raise UserError(_nothing(part, sorted(trained)))
    for name, leaf in trained.items():
        leaf.requires_grad_(name in chosen)
    if rank:
        _add_adapters(network, {id(leaf) for name, leaf in trained.items() if name not in chosen}, rank, seed)
    if not any(leaf.requires_grad for leaf in network.parameters()):
        raise UserError(f"train: {train} leaves nothing to train: no dense or convolution layer has a trained weight")
    keep_frozen_statistics(network)


def _named(network: nn.Module, part: str, names: Any) -> set[str]:
    if part == HEAD:
        return set(filter(is_of_head, names))
    if part == NORM:
        norms = [path for path, module in network.named_modules() if _is_normalization(module)]
        return {name for name in names if name.rpartition(".")[0] in norms}
    return {name for name in names if fnmatchcase(name, part)}


def _is_normalization(module: nn.Module) -> bool:
    return isinstance(module, Normalization | _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm)


def _nothing(part: str, names: list[str]) -> str:
    if part in (HEAD, NORM):
        what = "no module named head" if part == HEAD else "no normalization"
        return f"train: {part}: the network has {what} with parameters that train"
    near = by_similarity(part, names)[:_MOST_NAMES]
    more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
    return (
        f"train: {part!r} matches no parameter that trains{did_you_mean(part, names)}"
        f"{'' if did_you_mean(part, names) else ';'} parameters: {', '.join(near)}{more}"
    )


def _add_adapters(network: nn.Module, weights: set[int], rank: int, seed: int) -> None:
    """Add an adapter to each of these weights (by id) in dense and convolution layers; tied weights share theirs."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for path, module, name in list(_layers(network)):
        weight = module._parameters[name]
        if weight is None or id(weight) not in weights:
            continue
        if id(weight) not in made:
            made[id(weight)] = _adapter(weight, rank, stream(seed, f"lora/{path}").integers(2**63))
        layer: Any = type(module)
        module.__class__ = _adapted(layer, name)
        module.lora_A, module.lora_B = made[id(weight)]


def _layers(network: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield every dense and convolution layer with its path, and the name of its weight."""
    for path, module in network.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            yield path, module, "weight"
        elif isinstance(module, nn.MultiheadAttention):
            yield path, module, "in_proj_weight"


def _adapter(weight: Tensor, rank: int, key: Any) -> tuple[nn.Parameter, nn.Parameter]:
    """A, uniform as in the authors' code (Kaiming with a = sqrt(5)), and B = 0; the rank is at most the weight's."""
    out, fan_in = weight.shape[0], weight[0].numel()
    rank, bound = min(rank, out, fan_in), fan_in**-0.5
    draw = torch.Generator().manual_seed(int(key))
    a = torch.empty(rank, fan_in).uniform_(-bound, bound, generator=draw)
    return nn.Parameter(a.to(weight.dtype)), nn.Parameter(weight.new_zeros(out, rank))


@cache
def _adapted(layer: type[nn.Module], name: str) -> type[nn.Module]:
    """Return the subclass of a layer whose weight ``name`` reads as W + B A, for one client or a stack of clients."""

    def weight(self: Any) -> Tensor:
        own: Tensor = self._parameters[name]
        change: Tensor = self.lora_B @ self.lora_A
        return own + change.view(own.shape)

    return type(f"Lora{layer.__name__}", (layer,), {name: property(weight), "__module__": __name__})
