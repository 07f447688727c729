"""ResNet-18: sizes, and its blocks against the paper's equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.models.initial_weights import build
from flbench.models.layers import Conv
from flbench.registry import MODELS, NORMS
from tests.models.networks import images_for, small


@pytest.mark.parametrize(
    ("norm", "classes", "count"),
    [
        # The published code counts 11,164,490 for its static form: its stem always has 128 affine weights.
        ("ln-static", 10, 11_164_490 - 128),
        ("none", 10, 11_164_362),
        ("ln-channel", 10, 11_172_170),
        ({"name": "gn", "groups": 2}, 10, 11_172_170),
        ("none", 200, 11_164_362 + 190 * 513),
    ],
)
def test_number_of_weights(norm: Any, classes: int, count: int) -> None:
    with torch.device("meta"):
        network = MODELS.parse("resnet18").build((3, 32, 32), classes, NORMS.parse(norm), False)
    assert sum(leaf.numel() for leaf in network.parameters()) == count


def test_512_features_at_any_image_size() -> None:
    model = MODELS.parse("resnet18")
    for size in (1, 8, 32, 33, 64, 224):
        assert model.problem((3, size, size)) is None
        assert model.output((3, size, size)) == (512,)
    assert [site.shape for site in model.sites((3, 64, 64)) if site.last] == [(512, 8, 8)] * 2


def test_convolutions_follow_the_bias_flag_and_the_head_always_has_one() -> None:
    for bias in (False, True):
        network = build(MODELS.parse({"name": "resnet18", "width": 2}), (3, 8, 8), 4, NORMS.parse("none"), bias, seed=0)
        kernels = {name: m for name, m in network.named_modules() if isinstance(m, Conv)}
        assert len(kernels) == 1 + 16 + 3
        for name, conv in kernels.items():
            assert (conv.bias is not None) == (bias and not name.endswith("shortcut"))
        assert dict(network.named_parameters())["head.bias"].shape == (4,)


def forward_by_hand(x: Tensor, weights: dict[str, Tensor], before: Any, inner: Any, outer: Any, feature: Any) -> Tensor:
    """The small ResNet (blocks of 4, 8 and 8 channels) with norms at its activations, written out (eq. 9, 10)."""
    x = outer(F.relu(before(F.conv2d(x, weights["trunk.conv1.weight"], padding=1))))
    for number, stride in ((2, 1), (3, 2), (4, 1)):
        block = f"trunk.block{number}"
        branch = inner(F.relu(before(F.conv2d(x, weights[f"{block}.branch.conv1.weight"], stride=stride, padding=1))))
        branch = before(F.conv2d(branch, weights[f"{block}.branch.conv2.weight"], padding=1))
        if stride == 2:
            x = F.conv2d(x, weights[f"{block}.shortcut.weight"], stride=2)
        x = outer(F.relu(x + branch))
    return torch.as_tensor(feature(x.mean((2, 3))) @ weights["head.weight"].T + weights["head.bias"])


def scaled(x: Tensor) -> Tensor:
    return x * x[0].numel() ** 0.5 / x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


def mean_variance(x: Tensor) -> Tensor:
    return scaled(x - x.mean(tuple(range(1, x.dim())), keepdim=True))


def over_a_sample(x: Tensor) -> Tensor:
    return F.group_norm(x, 1)


def same(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("norm", "before", "inner", "outer", "feature"),
    [
        ("none", same, same, same, same),
        ("fn", same, same, same, scaled),
        ({"name": "ln-static", "variant": "code"}, same, mean_variance, mean_variance, same),
        ("fn-block-mv", same, mean_variance, same, scaled),
        ("fn-block-scale", same, scaled, same, scaled),
        ("fn-layerwise", same, scaled, scaled, scaled),
        # conv, norm, ReLU, conv, norm, add, ReLU: the published code's ``group_norm``.
        ({"name": "gn", "groups": 1, "order": "before"}, over_a_sample, same, same, same),
    ],
)
def test_blocks_are_those_of_the_paper(norm: Any, before: Any, inner: Any, outer: Any, feature: Any) -> None:
    network, images = small("resnet18", norm), images_for("resnet18", 4)
    weights = {name: leaf.detach() for name, leaf in network.named_parameters()}
    expected = forward_by_hand(images, weights, before, inner, outer, feature)
    torch.testing.assert_close(network(images)[1], expected, rtol=0, atol=1e-12)
