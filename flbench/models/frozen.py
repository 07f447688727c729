"""What training leaves as it is: parameters with ``requires_grad=False``, and the statistics inside frozen parts.

The engine treats both as constants: clients start every round with them as the server has them. They are neither sent
nor averaged, no method sees them, and no optimizer moves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType

from torch import Tensor, nn

Tree = dict[str, Tensor]


def initial_trees(network: nn.Module) -> tuple[Tree, Tree]:
    """Return copies of a network's trained parameters and of its other tensors: buffers and frozen parameters."""
    params = {name: leaf.detach().clone() for name, leaf in network.named_parameters() if leaf.requires_grad}
    every = [*network.named_buffers(), *network.named_parameters()]
    return params, {name: leaf.detach().clone() for name, leaf in every if name not in params}


def frozen_names(network: nn.Module) -> frozenset[str]:
    """Return the names of the frozen parameters and of the buffers inside frozen parts."""
    parameters = {name for name, leaf in network.named_parameters() if not leaf.requires_grad}
    if not parameters:
        return frozenset()
    return frozenset(parameters | {name for name, _ in _frozen_buffers(network)})


def keep_frozen_statistics(network: nn.Module) -> None:
    """Keep the modules with buffers inside frozen parts in evaluation mode, whatever mode the network is put into.

    A batch normalization whose parameters are frozen then normalizes by the statistics that it has, and moves none.
    """
    for _, module in _frozen_buffers(network):
        module.eval()
        module.train = MethodType(_stays, module)  # type: ignore[method-assign]


def _stays(module: nn.Module, mode: bool = True) -> nn.Module:
    return module


def _frozen_buffers(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name of every buffer inside a frozen part, and its module.

    A module is in a frozen part if it has parameters and all are frozen. A module without parameters is in one if this
    holds for the smallest module around it that has parameters.
    """
    modules = dict(network.named_modules())
    for path, module in modules.items():
        own = [name for name, _ in module.named_buffers(recurse=False)]
        if own and _is_frozen(path, modules):
            yield from ((f"{path}.{name}" if path else name, module) for name in own)


def _is_frozen(path: str, modules: dict[str, nn.Module]) -> bool:
    around = path
    while not (wants := [leaf.requires_grad for leaf in modules[around].parameters()]) and around:
        around = around.rpartition(".")[0]
    return bool(wants) and not any(wants)
