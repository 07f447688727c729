"""Map a function of one client's tensors over a stack of clients, as ``torch.func.vmap`` does.

Every operation is the same and so is every bit. ``vmap`` takes any tree and any axis; on small networks its handling of
these takes longer than the operations of a hook, which is called in every local step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch._C import _functorch
from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]


def over_clients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of trees whose tensors have the clients as their first axis.

    Arguments and results are tensors, and dicts and tuples of these. Drawing from a default generator is an error.
    """

    def mapped(*given: Any) -> Any:
        lazy_load_decompositions()  # those of operations that torch cannot map otherwise, once in a process
        size = len(next(_leaves(given)))
        level = _functorch._vmap_increment_nesting(size, "error")
        try:
            out = function(*_mapped(given, lambda leaf: _functorch._add_batch_dim(leaf, 0, level)))
            return _mapped(out, lambda leaf: _functorch._remove_batch_dim(leaf, level, size, 0))
        finally:
            _functorch._vmap_decrement_nesting()

    return mapped


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
        return
    for branch in tree.values() if isinstance(tree, dict) else tree:
        yield from _leaves(branch)


def _mapped(tree: Any, of_leaf: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return of_leaf(tree)
    if isinstance(tree, dict):
        return {name: _mapped(branch, of_leaf) for name, branch in tree.items()}
    return tuple(_mapped(branch, of_leaf) for branch in tree)
