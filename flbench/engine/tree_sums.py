"""Weighted sums of trees over clients, and what else concerns all leaves of a tree."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from flbench.engine.phases import aligned
from flbench.methods.base import Tree
from flbench.native.build import native
from flbench.native.changes_layout import Field, Leaf
from flbench.native.convolution_layout import LANES


def add_weighted(total: Tree, tree: Tree, weights_n: Tensor) -> None:
    """Add sum_n weight_n * leaf_n to every leaf of ``total``, in place.

    On a CPU clients are added one by one in ascending order, so that neither the executor nor the place where chunks
    are cut changes a bit. On a GPU a product and a sum over the chunk need fewer kernels; they are no matrix product,
    which TF32 would round.
    """
    if not total:
        return
    if weights_n.is_cpu:
        sums, leaves = list(total.values()), [tree[name].unbind() for name in total]
        for weight, of_client in zip(weights_n.tolist(), zip(*leaves, strict=True), strict=True):
            torch._foreach_add_(sums, of_client, alpha=weight)
        return
    for name, leaf in total.items():
        leaf.add_(weighted_sum(tree[name], weights_n))


def add_changes(total: Tree, after: Tree, before: Tree, weights_n: Tensor) -> None:
    """Add sum_n weight_n * (after_n - before) to every leaf of ``total``, in place, with the bits of ``add_weighted``.

    A compiled function takes one pass over the weights where torch takes two, and stores no change.
    """
    fit = [name for name, leaf in total.items() if _fits(leaf, after[name], before[name])]
    add = native("changes", "add") if fit else None
    if add is not None:
        weights = weights_n.to(torch.float32)
        numbers = [0] * len(Field)
        numbers[Field.LEAVES], numbers[Field.CLIENTS] = len(fit), len(weights)
        numbers[Field.WEIGHTS] = weights.data_ptr()
        for name in fit:
            leaf = [0] * len(Leaf)
            leaf[Leaf.FLOATS], leaf[Leaf.CLIENT] = total[name].numel(), 4 * after[name].stride(0)
            for place, tree in ((Leaf.AFTER, after), (Leaf.BEFORE, before), (Leaf.TOTAL, total)):
                leaf[place] = tree[name].data_ptr()
            numbers += leaf
        arguments = (ctypes.c_int64 * len(numbers))(*numbers)
        add(ctypes.addressof(arguments))
    rest = total if add is None else {name: leaf for name, leaf in total.items() if name not in fit}
    add_weighted(rest, {name: after[name] - before[name] for name in rest}, weights_n)


def _fits(total: Tensor, after_n: Tensor, before: Tensor) -> bool:
    """Return whether numbers of the same place in memory are those of the same weight, in whole vectors."""
    strides = total.stride()
    alike = before.stride() == strides == after_n.stride()[1:]
    dense = total.is_contiguous() or total.is_contiguous(memory_format=torch.channels_last)
    kinds = total.dtype == before.dtype == after_n.dtype == torch.float32
    return kinds and alike and dense and total.is_cpu and total.numel() % LANES == 0


def weighted_sum(leaf_n: Tensor, weights_n: Tensor) -> Tensor:
    """Return the sum of weight times leaf over the first axis, in the leaf's dtype."""
    weights = weights_n.to(leaf_n.dtype) if leaf_n.is_floating_point() else weights_n
    return (aligned(weights, leaf_n) * leaf_n).sum(0).to(leaf_n.dtype)


def is_averaged(leaf: Tensor) -> bool:
    """Return whether the mean over clients is taken of such numbers: of floating-point and complex ones."""
    return leaf.is_floating_point() or leaf.is_complex()


def tree_bytes(tree: Tree) -> int:
    """Return the size of all leaves."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.values())  # exact: whole numbers


def joined_trees(trees: Sequence[Tree]) -> Tree:
    """Return the trees of consecutive clients as one, joined along the first axis."""
    return trees[0] if len(trees) == 1 else {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}
