"""Every layer takes a stack of clients itself, and each slice of the stack is that client's own forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flbench.methods.base import tmap
from flbench.models.layers import StackableLayer
from flbench.models.network import buffers_that_are, pure_forward, stacked_forward
from flbench.models.observers import observers
from flbench.registry import NORMS
from tests.models.networks import fitting, images_for, small


@pytest.mark.parametrize("norm", sorted(name for name, norm in NORMS.classes.items() if not norm.lock_step))
def test_native_stacking_is_one_client_at_a_time(norm: str) -> None:
    for model in fitting(norm):
        check_stacking(model, norm)


def check_stacking(model: str, norm: str) -> None:
    network = small(model, norm, bias=True)
    assert all(isinstance(m, StackableLayer | nn.Sequential) for m in network.modules()), "vmap would hide a fault"
    generator = torch.Generator().manual_seed(1)

    def vary(leaf: Tensor) -> Tensor:
        noise = torch.rand((3, *leaf.shape), generator=generator, dtype=torch.float64)
        return leaf.detach() + 0.1 * noise

    params, buffers = tmap(vary, dict(network.named_parameters())), tmap(vary, dict(network.named_buffers()))
    images = images_for(model, 12).unflatten(0, (3, 4))
    for mode in (True, False):
        network.train(mode)
        own = [{name: leaf[k].clone() for name, leaf in buffers.items()} for k in range(3)]
        apart = [pure_forward(network)(tmap(lambda p, k=k: p[k], params), own[k], images[k]) for k in range(3)]
        together = {name: leaf.clone() for name, leaf in buffers.items()}
        features, logits = stacked_forward(network)(params, together, images)
        for k in range(3):
            torch.testing.assert_close(features[k], apart[k][0], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(logits[k], apart[k][1], rtol=1e-12, atol=1e-12)
            for name in buffers:
                torch.testing.assert_close(together[name][k], own[k][name], rtol=1e-12, atol=1e-12)
                moved = not torch.equal(together[name][k], buffers[name][k])
                # Layers that observe clients' data before the steps keep what they noted there.
                moves = mode and not any(observers(network))
                assert moved == moves or name in buffers_that_are("constants", network)
