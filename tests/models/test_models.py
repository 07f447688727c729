"""Networks: shapes, sizes, where norms sit, initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flbench.models.initial_weights import build
from flbench.models.layers import Pool, Relu
from flbench.models.network import Network
from flbench.models.norm_layers import BatchNorm, GroupNorm, LayerNorm, ScaleNorm
from flbench.registry import MODELS, NORMS

CIFAR, DIGITS = (3, 32, 32), (1, 8, 8)


def network(
    model: object = "cnn", norm: object = "none", image: tuple[int, int, int] = CIFAR, **kwargs: object
) -> Network:
    options = {"bias": False, "seed": 0, **kwargs}
    bias = bool(options.pop("bias"))
    built = build(MODELS.parse(model), image, 10, NORMS.parse(norm), bias, **options)  # type: ignore[arg-type]
    assert isinstance(built, Network)
    return built


def order(net: Network) -> list[str]:
    return [name for name, _ in net.trunk.named_children()]


@pytest.mark.parametrize(
    ("model", "image", "weights", "biases", "feature"),
    [
        ("cnn", CIFAR, 64 * 3 * 25 + 64 * 64 * 25 + 1600 * 384 + 384 * 192 + 192 * 10, 64 + 64 + 384 + 192 + 10, 192),
        ("cnn-table7", CIFAR, 64 * 3 * 25 + 64 * 64 * 25 + 1600 * 384 + 384 * 10, 64 + 64 + 384 + 10, 384),
        ("lenet", (1, 28, 28), 6 * 25 + 16 * 6 * 25 + 256 * 120 + 120 * 84 + 84 * 10, 6 + 16 + 120 + 84 + 10, 84),
        ("lenet", CIFAR, 6 * 3 * 25 + 16 * 6 * 25 + 400 * 120 + 120 * 84 + 84 * 10, 6 + 16 + 120 + 84 + 10, 84),
        ("mlp", DIGITS, 64 * 128 + 128 * 128 + 128 * 10, 128 + 128 + 10, 128),
        ({"name": "mlp", "widths": [5]}, DIGITS, 64 * 5 + 5 * 10, 5 + 10, 5),
    ],
)
def test_sizes(model: object, image: tuple[int, int, int], weights: int, biases: int, feature: int) -> None:
    for bias in (False, True):
        net = network(model, image=image, bias=bias)
        assert sum(leaf.numel() for leaf in net.parameters()) == weights + (biases if bias else 0)
        features, logits = net(torch.rand(2, *image))
        assert features.shape == (2, feature)
        assert logits.shape == (2, 10)
    if model == "cnn":
        assert weights == 797_248
    if model == "lenet":  # NIID-Bench's numbers, with biases
        assert weights + biases == (44_426 if image[0] == 1 else 62_006)
    if model == "cnn-table7":
        assert weights == 725_440


def test_norms_sit_after_each_activation_and_before_the_pool() -> None:
    assert order(network(norm="ln"))[:4] == ["conv1", "relu1", "after1", "pool1"]
    assert order(network(norm="ln"))[-3:] == ["dense4", "relu4", "after4"]
    kinds = {"ln": LayerNorm, "gn": GroupNorm, "bn": BatchNorm}
    for norm, kind in kinds.items():
        assert sum(isinstance(module, kind) for module in network(norm=norm).modules()) == 4


def test_feature_norm_sits_on_the_last_feature_only_and_pooling_comes_first() -> None:
    net = network(norm="fn")
    assert order(net)[:3] == ["conv1", "pool1", "relu1"]
    assert [name for name, module in net.named_modules() if isinstance(module, ScaleNorm)] == ["feature"]
    features, _ = net(torch.rand(5, *CIFAR))
    torch.testing.assert_close(features.norm(dim=1), torch.full((5,), 192**0.5))


def test_layer_norm_covers_channels_and_pixels_elementwise() -> None:
    shapes = [tuple(m.weight.shape) for m in network(norm="ln").modules() if isinstance(m, LayerNorm)]
    assert shapes == [(64, 28, 28), (64, 10, 10), (384,), (192,)]


def test_layer_norm_is_torchs_in_either_memory_layout() -> None:
    layer = LayerNorm((6, 5, 4), eps=1e-5)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = torch.randn(3, 6, 5, 4)
    expected = nn.functional.layer_norm(x, (6, 5, 4), layer.weight, layer.bias, 1e-5)
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(layer(x.contiguous(memory_format=layout)), expected)


def test_batch_norm_is_torchs() -> None:
    ours, theirs = BatchNorm(4, eps=1e-5), nn.BatchNorm2d(4)
    for _ in range(3):
        x = torch.randn(5, 4, 3, 3) * 2 + 1
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x))


def test_scale_norm_of_nothing_is_nothing_and_has_a_finite_gradient() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    out = ScaleNorm((4,), eps=1e-5)(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(2, 4))
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_pooling_before_relu_is_exact() -> None:
    x = torch.randn(4, 8, 10, 10, requires_grad=True)
    relu, pool = Relu(), Pool(2)
    a, b = relu(pool(x)), pool(relu(x))
    assert torch.equal(a, b)
    weight = torch.randn_like(a)
    (grad_a,) = torch.autograd.grad((a * weight).sum(), x)
    (grad_b,) = torch.autograd.grad((b * weight).sum(), x)
    assert torch.equal(grad_a, grad_b)


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    plain, normed, biased = network(), network(norm="bn"), network(bias=True)
    for name, leaf in plain.named_parameters():
        assert torch.equal(leaf, dict(normed.named_parameters())[name])
        assert torch.equal(leaf, dict(biased.named_parameters())[name])
    assert not torch.equal(plain.head.weight, network(seed=1).head.weight)
    assert torch.equal(plain.head.weight.double(), network(dtype=torch.float64).head.weight)
    bound = 1600**-0.5  # kaiming uniform with a = sqrt(5), torch's default for nn.Linear
    weight = dict(plain.named_parameters())["trunk.dense3.weight"]
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    network()
    assert torch.equal(torch.rand(3), expected)


def test_problems_are_reported_without_building() -> None:
    cnn, mlp = MODELS.parse("cnn"), MODELS.parse("mlp")
    assert "too small" in (cnn.problem(DIGITS) or "")
    assert cnn.problem(CIFAR) is None and mlp.problem(DIGITS) is None
    three = NORMS.parse({"name": "gn", "groups": 3})
    assert "does not divide" in (three.problem(tuple(mlp.sites(DIGITS))) or "")
    assert three.problem(tuple(MODELS.parse({"name": "mlp", "widths": [6, 9]}).sites(DIGITS))) is None
