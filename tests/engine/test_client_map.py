"""Hooks are mapped over clients with the bits of ``torch.func.vmap``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from flbench.engine.client_map import over_clients


def hook(own: dict[str, Any], logits: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    loss = torch.nn.functional.cross_entropy(logits @ own["w"]["a"].T, labels)
    return {"constant": torch.ones(2), "index": own["w"]["a"][labels]}, loss


def test_trees_are_mapped_as_vmap_maps_them() -> None:
    torch.manual_seed(0)
    leaf = torch.randn(5, 3, 4, requires_grad=True)
    given = {"w": {"a": leaf}, "empty": {}}, torch.randn(5, 7, 4), torch.randint(3, (5, 7))
    (tree, loss), (expected, of_vmap) = over_clients(hook)(*given), vmap(hook)(*given)
    assert all(torch.equal(tree[name], expected[name]) for name in expected) and tree["constant"].shape == (5, 2)
    gradients = [torch.autograd.grad(each.sum(), leaf)[0] for each in (loss, of_vmap)]
    assert torch.equal(loss, of_vmap) and torch.equal(*gradients)


def test_an_error_leaves_the_map() -> None:
    """Such as a draw, which would be one for all clients."""
    with pytest.raises(RuntimeError, match="randomness error mode"):
        over_clients(torch.rand_like)(torch.ones(2, 3))
    assert torch.equal(over_clients(torch.sum)(torch.ones(2, 3)), torch.tensor([3.0, 3.0]))
