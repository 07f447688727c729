"""Torch's own layers in flbench's form, against torch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from flbench.models.torch_layers import adapt

FORMS = [
    {},
    {"affine": False},
    {"momentum": None},
    {"track_running_stats": False},
    {"momentum": 0.5, "eps": 0.1},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_batch_norm_is_torchs_for_one_client_and_for_each_of_a_stack(form: dict[str, Any]) -> None:
    for dims in (1, 2, 3):
        for training in (True, False):
            check_batch_norm(dims, form, training)


def check_batch_norm(dims: int, form: dict[str, Any], training: bool) -> None:
    torch.manual_seed(0)
    theirs = [getattr(nn, f"BatchNorm{dims}d")(4, **form).double().train(training) for _ in range(3)]
    for layer in theirs:
        for leaf in (*layer.parameters(), *layer.buffers()):
            if leaf.is_floating_point():
                leaf.data.copy_(torch.rand(leaf.shape) + 0.5)
    ours = copy.deepcopy(theirs)
    for layer in ours:
        adapt(layer)
    leaves = {name: torch.stack([layer.state_dict()[name] for layer in ours]) for name in ours[0].state_dict()}
    for _ in range(2):
        x = 2 * torch.rand(3, 5, 4, *([3] * dims if dims > 1 else []), dtype=torch.float64)
        stacked = vmap(lambda leaves, x: functional_call(ours[0], leaves, (x,)))(leaves, x)
        for client in range(3):
            expected = theirs[client](x[client])
            assert torch.equal(ours[client](x[client]), expected)
            torch.testing.assert_close(stacked[client], expected, rtol=0, atol=1e-12)
    for client in range(3):
        for name, leaf in theirs[client].state_dict().items():
            assert torch.equal(ours[client].state_dict()[name], leaf)
            torch.testing.assert_close(leaves[name][client], leaf, rtol=0, atol=1e-12)


def test_one_value_of_a_channel_has_no_variance() -> None:
    layer = nn.BatchNorm1d(4)
    adapt(layer)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(torch.ones(1, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        vmap(layer)(torch.ones(3, 1, 4))


def test_classes_of_other_packages_stay() -> None:
    class Own(nn.BatchNorm1d):
        pass

    layer = Own(4)
    adapt(layer)
    assert type(layer) is Own
