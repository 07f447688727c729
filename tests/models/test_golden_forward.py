"""LeNet and the vision transformer against programs in numpy that share only the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from flbench.config import parse_experiment
from flbench.errors import UserError
from flbench.models.initial_weights import build
from flbench.models.network import stacked_forward
from flbench.registry import MODELS, NORMS

Array = NDArray[np.float64]


def network_and_images(model: Any, image: tuple[int, int, int], norm: str = "none") -> tuple[nn.Module, Array]:
    network = build(MODELS.parse(model), image, 5, NORMS.parse(norm), True, seed=2, dtype=torch.float64)
    with torch.no_grad():
        for leaf in network.parameters():  # also weights that start as zeros or ones
            leaf += 0.1 * torch.randn(leaf.shape, generator=torch.Generator().manual_seed(leaf.numel()))
    return network, np.random.default_rng(0).random((3, *image))


def compare(network: nn.Module, images: Array, expected: tuple[Array, Array]) -> None:
    with torch.no_grad():
        found = network(torch.from_numpy(images))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-12)


def convolved(x: Array, weight: Array, bias: Array) -> Array:
    """Slide a window over each image."""
    size = weight.shape[-1]
    height, width = x.shape[2] - size + 1, x.shape[3] - size + 1
    out = np.empty((len(x), len(weight), height, width))
    for row, column in product(range(height), range(width)):
        window = x[:, None, :, row : row + size, column : column + size]
        out[:, :, row, column] = (window * weight).sum((2, 3, 4)) + bias
    return out


def pooled(x: Array) -> Array:
    """Maximum of each 2x2 window; a last odd row or column is dropped."""
    height, width = x.shape[2] // 2, x.shape[3] // 2
    return x[:, :, : 2 * height, : 2 * width].reshape(*x.shape[:2], height, 2, width, 2).max((3, 5))


@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (1, 18, 21)])
def test_lenet(image: tuple[int, int, int]) -> None:
    network, x = network_and_images("lenet", image)
    w = [leaf.detach().numpy() for leaf in network.parameters()]
    images = x
    x = pooled(np.maximum(convolved(x, w[0], w[1]), 0))
    x = pooled(np.maximum(convolved(x, w[2], w[3]), 0)).reshape(3, -1)
    assert image != (1, 28, 28) or x.shape == (3, 256)
    assert image != (3, 32, 32) or x.shape == (3, 400)
    x = np.maximum(x @ w[4].T + w[5], 0)
    x = np.maximum(x @ w[6].T + w[7], 0)
    compare(network, images, (x, x @ w[8].T + w[9]))


VIT = {"name": "simple-vit", "patch": 2, "width": 8, "depth": 2, "heads": 2, "mlp_ratio": 3}


#: Of the tokens, by norm: (x, weights, name) to the normalized tokens.
TokenNorm = Callable[[Array, Mapping[str, Array], str], Array]


def layer_norm(x: Array, w: Mapping[str, Array], name: str, eps: float = 1e-6) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(x: Array, w: Mapping[str, Array], name: str) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.layer.weight"]


def dynamic_tanh(x: Array, w: Mapping[str, Array], name: str) -> Array:
    scaled = np.exp(2 * w[f"{name}.layer.alpha"] * x)
    return w[f"{name}.layer.weight"] * (scaled - 1) / (scaled + 1) + w[f"{name}.layer.bias"]


TOKEN_NORMS: dict[str, TokenNorm] = {
    "none": lambda x, w, name: x, "ln": partial(layer_norm, eps=1e-5), "rms": rms_norm, "dyt": dynamic_tanh,
}  # fmt: skip


def dense(x: Array, w: Mapping[str, Array], name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def vit_of_one(image: Array, w: Mapping[str, Array], norm: TokenNorm = layer_norm) -> tuple[Array, Array]:
    """The network on one image, patch by patch and head by head."""
    rows, columns = image.shape[1] // 2, image.shape[2] // 2
    tokens = []
    for row, column in product(range(rows), range(columns)):
        patch = image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        angles = [place / 10_000**power for place in (column, row) for power in (0, 1)]  # a quarter of the width is 2
        position = np.array([f(angles[k]) for first in (0, 2) for f in (np.sin, np.cos) for k in (first, first + 1)])
        tokens.append((w["embedding.weight"] * patch).sum((1, 2, 3)) + w["embedding.bias"] + position)
    x = np.array(tokens)
    for block in ("blocks.0", "blocks.1"):
        normed = norm(x, w, f"{block}.before_attention")
        q, k, v = (dense(normed, w, f"{block}.attention.{part}") for part in ("query", "key", "value"))
        mixed = np.empty_like(x)
        for head in (slice(0, 4), slice(4, 8)):
            scores = np.exp(q[:, head] @ k[:, head].T / 2)
            mixed[:, head] = scores / scores.sum(1, keepdims=True) @ v[:, head]
        x = x + dense(mixed, w, f"{block}.attention.out")
        hidden = dense(norm(x, w, f"{block}.before_mlp"), w, f"{block}.mlp.0")
        gelu = hidden / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + dense(gelu, w, f"{block}.mlp.2")
    feature = norm(x, w, "norm").mean(0)
    return feature, dense(feature, w, "head")


def test_simple_vit() -> None:
    network, images = network_and_images(VIT, (2, 4, 6))
    w = {name: leaf.detach().numpy() for name, leaf in network.named_parameters()}
    features, logits = zip(*(vit_of_one(image, w) for image in images), strict=True)
    compare(network, images, (np.array(features), np.array(logits)))


@pytest.mark.parametrize("norm", TOKEN_NORMS)
def test_norms_of_the_axis_inside_simple_vit(norm: str) -> None:
    network, images = network_and_images({**VIT, "norms": "axis"}, (2, 4, 6), norm=norm)
    w = {name: leaf.detach().numpy() for name, leaf in network.named_parameters()}
    features, logits = zip(*(vit_of_one(image, w, TOKEN_NORMS[norm]) for image in images), strict=True)
    compare(network, images, (np.array(features), np.array(logits)))
    plain = dict(network_and_images(VIT, (2, 4, 6))[0].named_parameters())
    assert all(torch.equal(leaf, plain[name]) for name, leaf in network.named_parameters() if ".mlp." in name)


def test_a_transformer_without_the_axis_is_the_run_that_it_was() -> None:
    fields: dict[str, Any] = {"dataset": "digits", "model": {"name": "simple-vit", "norms": "own"}, "norm": "fn"}
    assert parse_experiment(fields).run_id == parse_experiment({**fields, "model": "simple-vit"}).run_id
    axis = {**fields, "model": {"name": "simple-vit", "norms": "axis"}}
    ids = {parse_experiment({**axis, "norm": norm}).run_id for norm in ("none", "ln", "rms", "dyt", "gn", "bn")}
    assert len(ids) == 6


@pytest.mark.parametrize("bias", [False, True])
def test_sizes_of_simple_vit(bias: bool) -> None:
    network = build(MODELS.parse("simple-vit"), (3, 32, 32), 10, NORMS.parse("none"), bias, seed=0)
    block = 2 * 2 * 64 + 4 * 64 * 64 + 2 * 64 * 128  # two LN, attention, MLP
    biases = 64 + 4 * (4 * 64 + 128 + 64) + 10
    weights = 64 * 3 * 4 * 4 + 4 * block + 2 * 64 + 64 * 10
    assert sum(leaf.numel() for leaf in network.parameters()) == weights + bias * biases == 135_936 + bias * 1_866
    assert not list(network.buffers()), "buffers would be averaged over the clients"


def test_simple_vit_has_no_order_of_pixels_but_its_positions() -> None:
    """Moving a patch changes the output by its position alone: without positions the mean ignores the order."""
    network, images = network_and_images(VIT, (2, 4, 4))
    swapped = np.concatenate([images[..., 2:], images[..., :2]], axis=-1)
    with torch.no_grad():
        here, there = (network(torch.from_numpy(each))[0] for each in (images, swapped))
    assert (here - there).abs().max() > 1e-6


def test_simple_vit_maps_over_clients() -> None:
    network, images = network_and_images(VIT, (2, 4, 6))
    params = {name: torch.stack([leaf.detach(), 2 * leaf.detach()]) for name, leaf in network.named_parameters()}
    batches = torch.from_numpy(np.stack([images, images[::-1]]))
    features, logits = stacked_forward(network)(params, {}, batches)
    with torch.no_grad():
        torch.testing.assert_close((features[0], logits[0]), network(batches[0]), rtol=0, atol=1e-12)
        for leaf in network.parameters():
            leaf *= 2
        torch.testing.assert_close((features[1], logits[1]), network(batches[1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": {"name": "simple-vit", "patch": 3}}, "8x8 pixels cannot be cut into patches of 3x3"),
        ({"model": {"name": "simple-vit", "heads": 3}}, "heads must divide width, got 3 heads and width 64"),
        ({"model": {"name": "simple-vit", "width": 10}}, "multiple of 4"),
        ({"model": "simple-vit", "norm": "ln"}, "the network has the same layers without it"),
        ({"model": "lenet"}, "images of 8x8 pixels are too small"),
    ],
)
def test_what_does_not_fit_is_refused_at_planning(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_experiment({"dataset": "digits", **fields})


def test_feature_normalization_reaches_the_feature_of_simple_vit() -> None:
    parse_experiment({"dataset": "digits", "model": "simple-vit", "norm": "fn"})
    network, images = network_and_images(VIT, (2, 4, 6), norm="fn")
    with torch.no_grad():
        features, _ = network(torch.from_numpy(images))
    torch.testing.assert_close(features.norm(dim=1), torch.full((3,), 8**0.5, dtype=torch.float64))
