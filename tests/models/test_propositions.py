"""Propositions 1, 2 and 3 of the label-skew paper (Zhang et al. 2024), in float64.

Assumption 1: ReLU, and biases in the first layer at most. n is x / max(RMS, 1e-12), here sqrt(d) x / max(||x||, 1e-12):
the variant ``code``. Propositions 1 and 2 say that two networks are one function of the weights. So their gradients
with respect to the weights that the assumption leaves free are equal too, and training keeps them equal step by step:
with no biases at all, or with those of deeper layers held at 0. The head's bias is no part of the feature and is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.models.network import Network
from flbench.models.norm_layers import LayerNorm
from flbench.models.norms.reduced import LayerwiseFeatureNorm
from flbench.models.sites import Site
from tests.models.networks import images_for, small

Layers = dict[str, Tensor]


def code(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "variant": "code", **fields}


PAIRS = {1: (code("fn-layerwise"), code("fn")), 2: (code("ln-static"), code("ln-reduced"))}
both_propositions = pytest.mark.parametrize("proposition", [1, 2])
both_models = pytest.mark.parametrize("model", ["mlp", "cnn"])


def is_deep_bias(name: str) -> bool:
    return name.startswith("trunk") and name.endswith("bias") and "1." not in name


def network(model: str, norm: Any, biases: str, seed: int = 0) -> Network:
    """Biases: ``none``, ``first`` (those of deeper layers are 0), ``zero`` (as first, but free to train), ``all``."""
    net = small(model, norm, bias=biases != "none", seed=seed)
    with torch.no_grad():
        for name, leaf in net.named_parameters():
            if is_deep_bias(name) and biases in ("first", "zero"):
                leaf.zero_().requires_grad_(biases == "zero")
    return net


def gradients(net: Network, images: Tensor) -> dict[str, Tensor]:
    labels = torch.arange(len(images)) % 3
    named = {name: leaf for name, leaf in net.named_parameters() if leaf.requires_grad}
    loss = F.cross_entropy(net(images)[1], labels)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def train(net: Network, images: Tensor, steps: int = 10, lr: float = 0.1) -> None:
    weights = dict(net.named_parameters())
    for _ in range(steps):
        for name, grad in gradients(net, images).items():
            weights[name].data.sub_(lr * grad)


def gap_of(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max().detach() / b.abs().max().detach())


def gap(one: Network, other: Network, images: Tensor) -> float:
    """Largest difference of features and logits, relative to their sizes."""
    return max(gap_of(a, b) for a, b in zip(one(images), other(images), strict=True))


@both_models
@both_propositions
@pytest.mark.parametrize("biases", ["none", "first"])
def test_layerwise_and_reduced_networks_are_one_and_stay_one(biases: str, proposition: int, model: str) -> None:
    layerwise, reduced = (network(model, norm, biases) for norm in PAIRS[proposition])
    images = images_for(model, 8)
    assert gap(layerwise, reduced, images) < 1e-10
    others = gradients(reduced, images)
    for name, grad in gradients(layerwise, images).items():
        torch.testing.assert_close(grad, others[name], rtol=0, atol=1e-10)
    before = reduced(images)[1].detach()
    for net in (layerwise, reduced):
        train(net, images)
    assert gap_of(reduced(images)[1], before) > 0.01, "training must have moved it"
    assert gap(layerwise, reduced, images) < 1e-10
    assert gap(layerwise, reduced, images_for(model, 50, seed=2)) < 1e-10


@both_models
@both_propositions
def test_deeper_biases_break_it(proposition: int, model: str) -> None:
    layerwise, reduced = (network(model, norm, "all") for norm in PAIRS[proposition])
    assert gap(layerwise, reduced, images_for(model, 8)) > 1e-3


@both_models
@both_propositions
def test_deeper_biases_at_zero_break_it_with_the_first_step(proposition: int, model: str) -> None:
    """One function where they are 0, but not one function of them: their gradients differ, those of the rest do not."""
    layerwise, reduced = (network(model, norm, "zero") for norm in PAIRS[proposition])
    images = images_for(model, 8)
    assert gap(layerwise, reduced, images) < 1e-10
    others = gradients(reduced, images)
    for name, grad in gradients(layerwise, images).items():
        difference = gap_of(grad, others[name])
        assert difference > 1e-3 if is_deep_bias(name) else difference < 1e-9, name
    for net in (layerwise, reduced):
        train(net, images, steps=1)
    assert gap(layerwise, reduced, images) > 1e-6


@both_propositions
def test_the_floor_of_the_text_moves_nothing_at_usual_activations(proposition: int) -> None:
    """max(||x||, 1e-5) is ||x|| there, so the variants text and code are equal to the last bit."""
    exact, floored = ({**norm, "variant": v} for v in ("code", "text") for norm in PAIRS[proposition][:1])
    assert gap(network("mlp", floored, "first"), network("mlp", exact, "first"), images_for("mlp", 50)) == 0


def test_the_floor_of_the_text_breaks_proposition_1_at_tiny_activations() -> None:
    """Images of 1e-7: the feature's norm falls under the floor in the reduced network, and not in the layerwise one."""
    images = 1e-7 * images_for("mlp", 8)
    layerwise, reduced = (network("mlp", norm, "none") for norm in PAIRS[1])
    assert gap(layerwise, reduced, images) < 1e-10  # 1e-12 is still far below
    layerwise, reduced = (network("mlp", {**norm, "variant": "text"}, "none") for norm in PAIRS[1])
    assert gap(layerwise, reduced, images) > 0.1
    assert torch.equal(layerwise(images)[1].argmax(1), reduced(images)[1].argmax(1))


@both_models
def test_eps_inside_the_root_shrinks_the_feature_and_keeps_its_direction(model: str) -> None:
    """Torch's (x - mu) / sqrt(sigma^2 + 1e-5) in every layer, without biases.

    A positive factor of one layer's output is one of the next layer's input, so that in the end only the last layer's
    eps is left: the feature is the exact one times (1 + eps / sigma^2)^(-1/2), sigma being that of what the last layer
    normalizes. For layerwise LN that is some 1e-4; where only the last layer divides, sigma^2 is that of a vanilla
    network's activations, and the same eps takes away several per cent of the feature.
    """
    images = images_for(model, 50)
    exact = network(model, code("ln-static"), "none")(images)[0].detach()
    last = {"mlp": "trunk.after3", "cnn": "trunk.after4"}[model]
    layerwise = network(model, {"name": "ln-static", "variant": "original"}, "none")
    reduced = network(model, code("ln-reduced"), "none")
    reduced.get_submodule(last.rpartition(".")[0]).add_module(
        last.rpartition(".")[2], LayerNorm(exact.shape[1:], eps=1e-5, affine=False)
    )
    moved = {}
    for name, net in {"layerwise": layerwise, "reduced": reduced}.items():
        inputs: list[Tensor] = []
        net.get_submodule(last).register_forward_pre_hook(lambda _, given, inputs=inputs: inputs.append(given[0]))
        found = net(images)[0].detach()
        shrunk = (1 + 1e-5 / inputs[0].var(1, unbiased=False, keepdim=True)) ** -0.5
        torch.testing.assert_close(found, exact * shrunk.detach(), rtol=0, atol=1e-9)
        moved[name] = float(1 - shrunk.detach().median())
    assert 1e-6 < moved["layerwise"] < 1e-3
    assert moved["reduced"] > 10 * moved["layerwise"]


@dataclass(frozen=True)
class BetweenBlocks(LayerwiseFeatureNorm):
    """Scale normalization of the stem and of whole blocks, not inside them."""

    def layer(self, site: Site) -> nn.Module | None:
        return None if site.inside else super().layer(site)


def test_in_a_resnet_scales_between_blocks_reduce_and_those_inside_do_not() -> None:
    """A block of eq. 9 is scale equivariant; a norm inside hides the scale from the branch and not the shortcut."""
    images = images_for("resnet18", 8)
    reduced = small("resnet18", code("fn"))
    between = small("resnet18", BetweenBlocks(variant="code"))
    assert gap(between, reduced, images) < 1e-10
    for net in (between, reduced):
        train(net, images)
    assert gap(between, reduced, images) < 1e-10
    assert gap(small("resnet18", code("fn-layerwise")), small("resnet18", code("fn")), images) > 1e-3


def test_in_a_resnet_the_blocks_of_eq_11_are_not_equal_to_layer_norm() -> None:
    images = images_for("resnet18", 8)
    assert gap(small("resnet18", code("ln-static")), small("resnet18", code("ln-reduced")), images) > 1e-3


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18"])
@pytest.mark.parametrize("seed", range(3))
def test_proposition_3_feature_normalization_predicts_what_the_vanilla_network_predicts(seed: int, model: str) -> None:
    """Same weights, biases wherever you like but in the head; black images too, whose feature may be 0."""
    vanilla, normalized = (small(model, norm, bias=True, seed=seed) for norm in ("none", "fn"))
    images = torch.cat([images_for(model, 200, seed=seed), 0 * images_for(model, 1)])
    mean = F.normalize(vanilla(images)[0].detach().mean(0), dim=0)
    for net in (vanilla, normalized):
        net.head.bias.data.zero_()
        net.head.weight.data -= torch.outer(net.head.weight.data @ mean, mean)  # else all are of one class
    features, logits = vanilla(images)
    found = normalized(images)[1]
    factor = features.shape[1] ** 0.5 / features.norm(dim=1, keepdim=True).clamp_min(1e-5)
    torch.testing.assert_close(found, logits * factor, rtol=0, atol=1e-12)
    assert torch.equal(found.argmax(1), logits.argmax(1))
    assert len(logits.argmax(1).unique()) > 1, "a constant prediction would prove little"


def test_proposition_3_needs_a_head_without_bias() -> None:
    vanilla, normalized = (small("mlp", norm, bias=True) for norm in ("none", "fn"))
    for net in (vanilla, normalized):
        net.head.bias.data.copy_(torch.tensor([0.0, 1.0, 2.0]))
        net.head.weight.data.mul_(3)
    images = images_for("mlp", 200)
    assert not torch.equal(vanilla(images)[1].argmax(1), normalized(images)[1].argmax(1))


def centring(size: int) -> Tensor:
    """P = I - 11^T / d (eq. 24)."""
    return torch.eye(size, dtype=torch.float64) - 1 / size


def vanilla_from_post_activation(net: Network) -> Layers:
    """U'_1 = U_1, U'_i = U_i P (eq. 26, 27), W' = W P (eq. 29; the paper's W has a class a column)."""
    weights = {name: leaf.detach().clone() for name, leaf in net.named_parameters()}
    for name in ("trunk.dense2.weight", "trunk.dense3.weight", "head.weight"):
        weights[name] = weights[name] @ centring(weights[name].shape[1])
    return weights


def vanilla_from_pre_activation(net: Network) -> Layers:
    """U'_i = P U_i, b'_i = P b_i (eq. 24, 25), W' = W."""
    weights = {name: leaf.detach().clone() for name, leaf in net.named_parameters()}
    for name, leaf in weights.items():
        if name.startswith("trunk"):
            weights[name] = centring(len(leaf)) @ leaf
    return weights


@pytest.mark.parametrize("biases", ["none", "first"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("norm", "construct"),
    [
        (code("ln-static"), vanilla_from_post_activation),
        (code("ln-reduced"), vanilla_from_post_activation),
        (code("ln-static", order="before"), vanilla_from_pre_activation),
    ],
    ids=["post-activation", "reduced", "pre-activation"],
)
def test_proposition_3_a_vanilla_network_predicts_what_layer_norm_predicts(
    norm: Any, construct: Any, seed: int, biases: str
) -> None:
    """For the fully connected networks of the proof; its shifts of one sample are no convolution after a pooling."""
    normalized, vanilla = network("mlp", norm, biases, seed), network("mlp", "none", biases, seed)
    with torch.no_grad():
        for leaf in normalized.parameters():
            leaf.mul_(2)  # away from the initial weights
        if biases == "first":
            normalized.head.bias.zero_()
    vanilla.load_state_dict(construct(normalized))
    images = torch.randn(1000, 1, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, found = normalized(images)[1].detach(), vanilla(images)[1].detach()
    assert torch.equal(found.argmax(1), expected.argmax(1))
    torch.testing.assert_close(F.normalize(found), F.normalize(expected), rtol=0, atol=1e-9)
    with torch.no_grad():
        plain = dict(network("mlp", "none", biases, seed).named_parameters())
        assert not torch.equal(plain["head.weight"], vanilla.head.weight) or "before" in str(norm)
