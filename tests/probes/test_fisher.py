"""The Fisher information of small networks: three routes to it, and what normalizations do to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flbench import fisher
from flbench.methods.base import Tree
from flbench.models.network import pure_forward
from tests.models.networks import images_for, small


def draw(width: int, samples: int, outputs: int = 1, *, sigma_w2: float = 2.0, sigma_b2: float = 0.0, seed: int = 0):  # type: ignore[no-untyped-def]
    """Inputs and the parameters of a random network of three layers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * math.sqrt(scale)

    sizes = [width, width, width, outputs]
    params: Tree = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes), start=1):
        params[f"w{layer}"] = normal(fan_out, fan_in, scale=sigma_w2 / fan_in)
        params[f"b{layer}"] = normal(fan_out, scale=sigma_b2)
    return normal(samples, width, scale=1.0), params


def network(x: Tensor, phi: Callable[[Tensor], Tensor] = torch.relu) -> Callable[[Tree], Tensor]:
    def outputs(p: Tree) -> Tensor:
        h = phi(F.linear(x, p["w1"], p["b1"]))
        h = phi(F.linear(h, p["w2"], p["b2"]))
        return F.linear(h, p["w3"], p["b3"])

    return outputs


def gradients(outputs: Callable[[Tree], Tensor], params: Tree) -> Tensor:
    """J (R, P), one backward pass a row."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    rows = []
    for value in outputs(leaves).flatten():
        parts = torch.autograd.grad(value, list(leaves.values()), retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def descending(symmetric: Tensor) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = torch.linalg.eigvalsh(symmetric).flip(0).numpy()
    return values


@pytest.mark.parametrize("outputs", [1, 3])
def test_three_routes_agree(outputs: int) -> None:
    x, params = draw(6, 9, outputs, sigma_b2=0.3)
    f = network(x, torch.tanh)
    rows = gradients(f, params)
    eigenvalues = descending(rows.T @ rows / 9)  # of F itself (P, P)
    found = fisher.spectrum(fisher.Jacobian(f, params))
    np.testing.assert_allclose(found, eigenvalues[: 9 * outputs], atol=1e-10)
    assert found[0] == pytest.approx(eigenvalues[0], rel=1e-12)
    assert fisher.largest_eigenvalue(fisher.Jacobian(f, params), tolerance=1e-10) == pytest.approx(
        eigenvalues[0], rel=1e-9
    )


def test_two_samples_need_no_iterations() -> None:
    x, params = draw(5, 2)
    f = network(x)
    assert fisher.largest_eigenvalue(fisher.Jacobian(f, params)) == pytest.approx(
        fisher.spectrum(fisher.Jacobian(f, params))[0], rel=1e-12
    )


def test_a_dead_network_is_flat() -> None:
    x, params = draw(width=6, samples=5)

    def certain(leaves: Tree) -> Tensor:
        """What a softmax leaves of outputs that it is certain of."""
        return network(x)(leaves) * 0

    assert fisher.largest_eigenvalue(fisher.Jacobian(certain, params)) == 0.0
    assert not fisher.spectrum(fisher.Jacobian(certain, params)).any()


def test_subtracting_the_mean_is_double_centring() -> None:
    x, params = draw(20, 20)
    f = network(x)
    centred = fisher.Jacobian(lambda p: f(p) - f(p).mean(0), params).gram()
    projection = torch.eye(20, dtype=torch.float64) - 1 / 20
    torch.testing.assert_close(centred, projection @ fisher.Jacobian(f, params).gram() @ projection, atol=1e-12, rtol=0)


def test_batch_norm_of_one_output_projects_it_out_too() -> None:
    """K_bn = P K P / sigma^2, where P removes the constant and the normalized output itself."""
    x, params = draw(20, 20)
    f = network(x)
    y = f(params)
    sigma = y.std(unbiased=False)
    normalized = (y - y.mean()) / sigma
    with_bn = fisher.Jacobian(lambda p: F.batch_norm(f(p), None, None, training=True, eps=1e-30), params).gram()
    basis = torch.cat([torch.ones(20, 1, dtype=torch.float64), normalized], dim=1) / 20**0.5
    projection = torch.eye(20, dtype=torch.float64) - basis @ basis.T
    expected = projection @ fisher.Jacobian(f, params).gram() @ projection / sigma**2
    torch.testing.assert_close(with_bn, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("norm", ["none", "fn", "ln", "gn", "bn", "bn-last", "mean-last"])
def test_real_networks_in_training_mode(norm: str) -> None:
    """With buffers that a forward pass updates, and statistics of the batch that gradients flow through."""
    net = small("cnn", norm, bias=True).train()
    forward = pure_forward(net)
    params = {name: leaf.detach() for name, leaf in net.named_parameters()}
    buffers = {name: leaf.detach().clone() for name, leaf in net.named_buffers()}
    images = images_for("cnn", 4)

    def outputs(p: Tree) -> Tensor:
        return forward(p, {name: leaf.clone() for name, leaf in buffers.items()}, images)[1]

    rows = gradients(outputs, params)
    eigenvalues = descending(rows @ rows.T / 4)
    found = fisher.spectrum(fisher.Jacobian(outputs, params))
    np.testing.assert_allclose(found, eigenvalues, atol=1e-10 * eigenvalues[0])
    assert fisher.largest_eigenvalue(fisher.Jacobian(outputs, params)) == pytest.approx(eigenvalues[0], rel=1e-6)
