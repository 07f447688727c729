"""Whether a hook changes in place what it is given: torch counts the changes of each tensor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._C import _functorch as functorch

from flbench.methods.base import Method

#: What hooks see in a context, a batch or outputs, and must not change.
_SEEN = ("x", "server", "client", "counts_Y", "labels_B", "features_BD", "logits_BY", "messages_n", "losses_n")


def tensors_of(hook: str, given: Sequence[Any]) -> dict[str, Tensor]:
    """Return the tensors that a hook is given, by how it writes them: ``w['head.weight']``, ``ctx.counts_Y``."""
    parts: dict[str, Any] = {}
    for name, value in zip(list(inspect.signature(getattr(Method, hook)).parameters)[1:], given, strict=False):
        inner = {f"{name}.{each}": getattr(value, each) for each in _SEEN if hasattr(value, each)}
        parts |= {name: value} if isinstance(value, dict | Tensor) else inner
    trees = {name: {"": part} if isinstance(part, Tensor) else part for name, part in parts.items()}
    return {
        f"{name}[{key!r}]" if key else name: leaf
        for name, tree in trees.items()
        if isinstance(tree, dict)
        for key, leaf in tree.items()
        if isinstance(leaf, Tensor)
    }


def versions(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return how often each tensor was changed in place; tensors of inference mode do not count it."""
    inner = {name: _unmapped(leaf) for name, leaf in tensors.items()}
    return {name: leaf._version for name, leaf in inner.items() if not leaf.is_inference()}


def _unmapped(leaf: Tensor) -> Tensor:
    """The tensor of all clients, of which a hook that is mapped over them sees one client's part."""
    while functorch.is_functorch_wrapped_tensor(leaf):
        leaf = functorch.get_unwrapped(leaf)
    return leaf
