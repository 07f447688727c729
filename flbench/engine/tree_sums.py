"""Weighted sums of trees over clients, and what else concerns all leaves of a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flbench.engine.phases import aligned
from flbench.methods.base import Tree


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
