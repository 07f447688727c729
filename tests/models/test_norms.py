"""Normalizations: where each sits, what it computes, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flbench.config import InvalidExperiment, parse_experiment
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.norm_layers import (
    BatchNorm,
    BatchShift,
    DynamicTanh,
    Factor,
    GroupNorm,
    LayerNorm,
    MeanShift,
    RmsNorm,
    ScaleNorm,
)
from flbench.models.norms import EPS, Norm
from flbench.models.norms.layerwise import GroupNorm as GroupedNorm
from flbench.models.sites import Shape, Site
from flbench.models.stages import Stage
from flbench.registry import MODELS, NORMS
from tests.models.networks import SMALL, fitting, images_for, small

every_norm = pytest.mark.parametrize("norm", sorted(NORMS.classes))

KINDS = (BatchNorm, BatchShift, DynamicTanh, Factor, GroupNorm, LayerNorm, MeanShift, RmsNorm, ScaleNorm)


def places(network: nn.Module) -> dict[str, str]:
    """Name and type of every normalizing layer; n_MV is a shift and a scale."""
    found: dict[str, str] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Sequential) and [type(part) for part in module] == [MeanShift, ScaleNorm]:
            found[name] = "MV"
        elif isinstance(module, KINDS) and name.rpartition(".")[0] not in found:
            found[name] = type(module).__name__
    return found


CNN = [f"trunk.after{number}" for number in (1, 2, 3, 4)]
BLOCKS = ("block2", "block3", "block4")  # of the small ResNet: one of 4 channels, two of 8


def resnet(kind: str, *, stem: str = "", inside: str = "", between: str = "", feature: str = "") -> dict[str, str]:
    """What sits where in the small ResNet, position ``kind``."""
    found = {f"trunk.{kind}1": stem}
    for number, block in enumerate(BLOCKS, start=2):
        found[f"trunk.{block}.branch.{kind}1"] = inside
        found[f"trunk.{block}.branch.before2" if kind == "before" else f"trunk.after{number}"] = between
    found["feature"] = feature
    return {name: layer for name, layer in found.items() if layer}


def everywhere(kind: str, layer: str) -> dict[str, str]:
    return resnet(kind, stem=layer, inside=layer, between=layer)


@pytest.mark.parametrize(
    ("norm", "in_cnn", "in_resnet"),
    [
        ("none", {}, {}),
        ("fn", {"feature": "ScaleNorm"}, {"feature": "ScaleNorm"}),
        (
            "fn-layerwise",
            {**dict.fromkeys(CNN[:3], "ScaleNorm"), "feature": "ScaleNorm"},
            {name: layer for name, layer in everywhere("after", "ScaleNorm").items() if name != "trunk.after4"}
            | {"feature": "ScaleNorm"},
        ),
        ("ln", dict.fromkeys(CNN, "LayerNorm"), everywhere("after", "LayerNorm")),
        ("ln-static", dict.fromkeys(CNN, "LayerNorm"), everywhere("after", "LayerNorm")),
        ({"name": "ln-static", "variant": "code"}, dict.fromkeys(CNN, "MV"), everywhere("after", "MV")),
        (
            "ln-before",
            {f"trunk.before{number}": "LayerNorm" for number in (1, 2, 3, 4)},
            everywhere("before", "LayerNorm"),
        ),
        ("ln-channel", dict.fromkeys(CNN, "GroupNorm"), everywhere("after", "GroupNorm")),
        ({"name": "gn", "order": "before"}, None, everywhere("before", "GroupNorm")),
        ("in", dict.fromkeys(CNN[:2], "GroupNorm"), everywhere("after", "GroupNorm")),
        ("rms", dict.fromkeys(CNN, "RmsNorm"), everywhere("after", "RmsNorm")),
        ("dyt", dict.fromkeys(CNN, "DynamicTanh"), everywhere("after", "DynamicTanh")),
        ("bn", dict.fromkeys(CNN, "BatchNorm"), everywhere("after", "BatchNorm")),
        (
            "ln-reduced",
            {**dict.fromkeys(CNN[:3], "MeanShift"), CNN[3]: "MV"},
            resnet("after", stem="MeanShift", inside="MV", between="MeanShift") | {"trunk.after4": "MV"},
        ),
        ("fn-block-mv", None, resnet("after", inside="MV", feature="ScaleNorm")),
        ("fn-block-scale", None, resnet("after", inside="ScaleNorm", feature="ScaleNorm")),
        ("scale", {"feature": "Factor"}, {"feature": "Factor"}),
        (
            "scale-layerwise",
            {**dict.fromkeys(CNN[:3], "Factor"), "feature": "Factor"},
            {name: layer for name, layer in everywhere("after", "Factor").items() if name != "trunk.after4"}
            | {"feature": "Factor"},
        ),
        ("gn-ws", None, everywhere("before", "GroupNorm")),
        ("mean-last", {"logits": "BatchShift"}, {"logits": "BatchShift"}),
        ("bn-last", {"logits": "BatchNorm"}, {"logits": "BatchNorm"}),
    ],
)
def test_where_it_sits(norm: Any, in_cnn: dict[str, str] | None, in_resnet: dict[str, str]) -> None:
    if in_cnn is not None:
        assert places(small("cnn", norm)) == in_cnn
    assert places(small("resnet18", norm)) == in_resnet


@every_norm
def test_sites_tell_what_the_network_really_has(norm: str) -> None:
    """Every site's layer sees activations of the shape that the site announced, in the announced order."""
    for model in fitting(norm):
        spec, image = SMALL[model]
        announced: list[Site] = [*MODELS.parse(spec).sites(image), Site("logits", (3,))]
        expected = [site.shape for site in announced if NORMS.parse(norm).layer(site) is not None]
        assert [site.shape for site in announced if NORMS.parse(norm).sits(site)] == expected
        of_weights = type(NORMS.parse(norm)).weights is not Norm.weights
        assert expected or of_weights or norm == "none"
        network = small(model, norm)
        seen: list[tuple[int, ...]] = []
        for name in places(network):
            module = network.get_submodule(name)
            module.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(tuple(inputs[0].shape[1:])))
        network(images_for(model, 2))
        assert seen == expected, model


def mv(x: Tensor, dims: tuple[int, ...], eps: float = EPS) -> Tensor:
    mean = x.mean(dims, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(dims, keepdim=True) + eps).sqrt()


def unit(x: Tensor, floor: float) -> Tensor:
    norms = x.flatten(1).square().sum(1).sqrt().clamp_min(floor)
    return x * (x[0].numel() ** 0.5 / norms).view(-1, *[1] * (x.dim() - 1))


def grouped(x: Tensor, groups: int) -> Tensor:
    return mv(x.reshape(len(x), groups, -1), (2,)).view_as(x)


def channelwise(leaf: Tensor, x: Tensor) -> Tensor:
    return leaf.view(-1, *[1] * (x.dim() - 2))


def own_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(1, x.dim()))


def centred(x: Tensor) -> Tensor:
    return x - x.mean(own_axes(x), keepdim=True)


FORMULAS: list[tuple[Any, Any]] = [
    ("fn", lambda x, w, b: unit(x, 1e-5)),
    ({"name": "fn", "variant": "code"}, lambda x, w, b: unit(x, 1e-12)),
    ("ln", lambda x, w, b: mv(x, own_axes(x)) * w + b),
    ("ln-static", lambda x, w, b: mv(x, own_axes(x))),
    ({"name": "ln-static", "variant": "text"}, lambda x, w, b: unit(centred(x), 1e-5)),
    ({"name": "ln-static", "variant": "code"}, lambda x, w, b: unit(centred(x), 1e-12)),
    ("ln-channel", lambda x, w, b: mv(x, own_axes(x)) * channelwise(w, x) + channelwise(b, x)),
    ({"name": "gn", "groups": 3}, lambda x, w, b: grouped(x, 3) * channelwise(w, x) + channelwise(b, x)),
    ({"name": "gn-static", "groups": 3}, lambda x, w, b: grouped(x, 3)),
    (
        {"name": "gn", "group_size": 2},
        lambda x, w, b: grouped(x, x.shape[1] // 2) * channelwise(w, x) + channelwise(b, x),
    ),
    ({"name": "gn-static", "group_size": 3}, lambda x, w, b: grouped(x, x.shape[1] // 3)),
    ("rms", lambda x, w, b: x / (x.square().mean(own_axes(x), keepdim=True) + EPS).sqrt() * w),
    ("bn", lambda x, w, b: mv(x, (0, *range(2, x.dim()))) * channelwise(w, x) + channelwise(b, x)),
    ("bn-static", lambda x, w, b: mv(x, (0, *range(2, x.dim())))),
]


@pytest.mark.parametrize(("norm", "formula"), FORMULAS, ids=lambda value: str(value) if not callable(value) else "")
def test_values(norm: Any, formula: Any) -> None:
    """Against the formula, in both layouts of images, also where eps rules: activations of 1e-7."""
    position = "feature" if "fn" in str(norm) else "after"
    for shape, scale in product([(6, 5, 4), (12,)], [1.0, 1e-7]):
        layer = NORMS.parse(norm).layer(Site(position, shape)).double()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for leaf in layer.parameters():
                leaf.copy_(torch.rand(leaf.shape, generator=generator, dtype=torch.float64))
        x = scale * (torch.rand(7, *shape, generator=generator, dtype=torch.float64) - 0.3)
        expected = formula(x, getattr(layer, "weight", None), getattr(layer, "bias", None))
        for each in (x, x.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else x):
            torch.testing.assert_close(layer(each), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 5, 4), (12,)])
def test_dynamic_tanh_is_the_authors(shape: Shape) -> None:
    """Gamma tanh(alpha x) + beta by numpy, for one client and, natively, for a stack of clients of other numbers."""
    layer = NORMS.parse({"name": "dyt", "alpha": 0.8}).layer(Site("after", shape)).double()
    assert float(layer.alpha) == pytest.approx(0.8)
    draw = np.random.default_rng(0)
    x, alpha = draw.normal(size=(3, 7, *shape)), draw.normal(size=(3, 1))
    gamma, beta = draw.normal(size=(2, 3, shape[0]))
    ones = [1] * (len(shape) - 1)
    expected = [
        g.reshape(-1, *ones) * (1 - 2 / (np.exp(2 * a * one) + 1)) + b.reshape(-1, *ones)
        for one, a, g, b in zip(x, alpha, gamma, beta, strict=True)
    ]
    tree = {name: torch.from_numpy(leaf) for name, leaf in (("alpha", alpha), ("weight", gamma), ("bias", beta))}
    stacked = functional_call(layer, tree, torch.from_numpy(x))
    for client, numbers in enumerate(expected):
        alone = functional_call(layer, {name: leaf[client] for name, leaf in tree.items()}, torch.from_numpy(x[client]))
        for found in (alone, stacked[client]):
            np.testing.assert_allclose(found.detach().numpy(), numbers, rtol=0, atol=1e-12)


def test_instance_norm_is_torchs() -> None:
    ours, theirs = NORMS.parse("in").layer(Site("after", (6, 5, 4))), nn.InstanceNorm2d(6, affine=True)
    x = torch.randn(3, 6, 5, 4)
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(ours(x.contiguous(memory_format=layout)), theirs(x))


def test_shift_of_prop_2() -> None:
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(MeanShift((6, 5, 4))(x), centred(x), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("variant", "norm", "expected"), [("text", 1e-6, 0.2), ("code", 1e-6, 2), ("code", 2e-12, 2), ("code", 1e-13, 0.2)]
)
def test_eps_floors_the_norm_of_the_feature(variant: str, norm: float, expected: float) -> None:
    """Sqrt(4) ||x|| / max(||x||, eps), eps 1e-5 in the text and 1e-12 in the code."""
    x = torch.full((1, 4), norm / 2, dtype=torch.float64)
    layer = NORMS.parse({"name": "fn", "variant": variant}).layer(Site("feature", (4,)))
    assert float(layer(x).norm()) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mean-last", "bn-last"])
def test_normalized_logits_in_training_and_evaluation(name: str) -> None:
    """Training: the batch's statistics, into running ones at rate 0.1; evaluation: those, whatever the batch."""
    network = small("mlp", name)
    plain = small("mlp")
    images = images_for("mlp", 5)
    raw = plain(images)[1].detach()
    mean, var = raw.mean(0), raw.var(0, unbiased=False)
    spread = (var + EPS).sqrt() if name == "bn-last" else torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(network(images)[1], (raw - mean) / spread, rtol=0, atol=1e-12)
    buffers = dict(network.named_buffers())
    torch.testing.assert_close(buffers["logits.running_mean"], 0.1 * mean, rtol=0, atol=1e-15)
    running = torch.ones(3, dtype=torch.float64)
    if name == "bn-last":
        running = 0.9 + 0.1 * raw.var(0) + EPS
        torch.testing.assert_close(buffers["logits.running_var"] + EPS, running, rtol=0, atol=1e-15)
    network.eval()
    expected = (raw - 0.1 * mean) / running.sqrt()
    torch.testing.assert_close(network(images)[1], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(network(images[2:3])[1], expected[2:3], rtol=0, atol=1e-12)


def test_mean_subtraction_differentiates_through_the_mean() -> None:
    """d/du sum_t c_t (u_t - mean u) = c - mean c; the running mean stays outside of the graph."""
    layer = BatchShift(1).double()
    u = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64, requires_grad=True)
    c = torch.tensor([[1.0], [0.0], [5.0]], dtype=torch.float64)
    (c * layer(u)).sum().backward()
    assert u.grad is not None
    torch.testing.assert_close(u.grad, c - 2.0)
    assert not layer.running_mean.requires_grad
    assert float(layer.running_mean) == pytest.approx(0.3)


@every_norm
def test_gradients_are_finite_at_black_images(norm: str) -> None:
    for model in fitting(norm):
        network = small(model, norm)
        images = (0 * images_for(model, 4)).requires_grad_()
        _, logits = network(images)
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
        for grad in torch.autograd.grad(loss, [images, *network.parameters()]):
            assert torch.isfinite(grad).all(), model


@every_norm
def test_affine_maps_begin_as_the_identity_and_weights_stay_the_vanilla_ones(norm: str) -> None:
    affine = {"ln", "ln-before", "ln-channel", "gn", "in", "rms", "bn", "bn-last", "silobn", "fixbn", "fbn", "fedtan"}
    affine |= {"gn-ws", "ws-scaled", "dyt", "hbn"}
    for model in fitting(norm):
        network, plain = small(model, norm), dict(small(model).named_parameters())
        for name, leaf in network.named_parameters():
            start = 0.5 if name.endswith("alpha") else float(name.endswith(("weight", "gain")))
            expected = plain[name] if name in plain else torch.full_like(leaf, start)
            assert torch.equal(leaf, expected), (model, name)
        assert plain.keys() <= dict(network.named_parameters()).keys()
        assert (len(plain) < len(list(network.parameters()))) == (norm in affine), model


def test_static_layer_norm_is_layer_norm_at_its_start() -> None:
    for model in SMALL:
        images = images_for(model, 3)
        expected = small(model, "ln")(images)[1]
        for norm in ("ln-static", "ln-channel", {"name": "gn", "groups": 1}, {"name": "gn-static", "groups": 1}):
            torch.testing.assert_close(small(model, norm)(images)[1], expected, rtol=0, atol=1e-12)


#: An MLP with a layer of one unit.
NARROW = {"name": "mlp", "widths": [8, 1]}


def test_every_norm_is_registered_with_equation_and_source() -> None:
    for cls in NORMS.classes.values():
        assert cls.equation and "source" in vars(cls) and cls.__doc__
    assert NORMS.parse("gn").groups == 2  # Table 4


@pytest.mark.parametrize(
    ("norm", "model", "image", "message"),
    [
        ("fn-block-mv", "cnn", (3, 32, 32), "no residual blocks"),
        ("fn-block-scale", "mlp", (1, 8, 8), "no residual blocks"),
        ("in", "mlp", (1, 8, 8), "no layer has pixels"),
        ("in", "resnet18", (3, 8, 8), "a single number, which it would set to 0"),
        ({"name": "gn", "groups": 48}, "resnet18", (3, 8, 8), "does not divide a layer of 64"),
        ({"name": "gn-static", "groups": 5}, "cnn", (3, 32, 32), "does not divide"),
        ({"name": "gn", "group_size": 48}, "resnet18", (3, 8, 8), "group_size=48 does not divide a layer of 64"),
        ({"name": "gn-static", "group_size": 1}, "cnn", (3, 32, 32), "a single number, which it would set to 0"),
        ({"name": "gn", "groups": 128}, "mlp", (1, 8, 8), "a single number, which it would set to 0: use fewer groups"),
        ({"name": "gn-static", "groups": 128}, "mlp", (1, 8, 8), "a single number"),
        ("ln", NARROW, (1, 8, 8), "a single number"),
        ("ln-before", NARROW, (1, 8, 8), "a single number"),
        ("ln-static", NARROW, (1, 8, 8), "a single number"),
        ("ln-channel", NARROW, (1, 8, 8), "a single number"),
        ("ln-reduced", NARROW, (1, 8, 8), "a single number"),
        ("fn-block-mv", {"name": "resnet18", "width": 1, "blocks": [1]}, (1, 1, 1), "a single number"),
        ("ws", "mlp", (1, 8, 8), "no layer is a convolution: use layers: all"),
        ("gn-ws", "simple-vit", (1, 8, 8), "no layer is a convolution"),
        ({"name": "ws-scaled", "layers": "all"}, "simple-vit", (1, 8, 8), "no layer has weights"),
        ({"name": "gn-ws", "groups": 48}, "resnet18", (3, 8, 8), "does not divide a layer of 64"),
    ],
)
def test_norms_that_do_not_fit_are_reported(norm: Any, model: Any, image: tuple[int, int, int], message: str) -> None:
    assert message in (NORMS.parse(norm).problem(tuple(MODELS.parse(model).sites(image))) or "")


SPELLINGS: list[tuple[dict[str, Any], Any]] = [
    ({"name": "ln", "order": "before"}, "ln-before"),
    ({"name": "gn", "groups": 1}, "ln-channel"),
    ({"name": "gn", "groups": 1, "order": "before"}, {"name": "ln-channel", "order": "before"}),
    ({"name": "gn-static", "groups": 1}, "ln-static"),
    ({"name": "gn-static", "groups": 1, "order": "before"}, {"name": "ln-static", "order": "before"}),
]


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize(("written", "canonical"), SPELLINGS)
def test_two_spellings_of_one_norm_compute_the_same(written: dict[str, Any], canonical: Any, model: str) -> None:
    norm = NORMS.parse(written)
    assert norm.canonical() == NORMS.parse(canonical)
    assert norm.identity() == NORMS.parse(canonical).identity()
    x = images_for(model, 5)
    expected = small(model, canonical)
    assert torch.equal(small(model, written)(x)[1], expected(x)[1])
    # The layers of the written form, which ``build`` replaces by those of the canonical one, agree up to rounding.
    spec, image = SMALL[model]
    literal = MODELS.parse(spec).build(image, 3, norm, False).to(torch.float64)
    literal.load_state_dict(expected.state_dict())
    torch.testing.assert_close(literal(x)[1], expected(x)[1], rtol=1e-9, atol=1e-12)
    for left, right in zip(gradients(literal, x), gradients(expected, x), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


SAME_IN_A_NETWORK: list[tuple[Any, Any, Any]] = [
    ({"name": "mlp", "widths": [8, 8]}, {"name": "gn", "group_size": 4}, "gn"),
    ({"name": "mlp", "widths": [8, 8]}, {"name": "gn-static", "group_size": 8, "order": "before"},
     {"name": "ln-static", "order": "before"}),
    ({"name": "mlp", "widths": [8]}, {"name": "scale-layerwise", "factor": 2}, {"name": "scale", "factor": 2}),
    ("mlp", {"name": "scale-layerwise", "factor": 1}, "none"),
    ({"name": "resnet18", "width": 2, "blocks": [1, 1]}, {"name": "gn", "group_size": 1, "order": "before"},
     {"name": "in", "order": "before"}),
    ({"name": "resnet18", "width": 2, "blocks": [1]}, {"name": "gn-ws", "group_size": 2, "layers": "all"},
     {"name": "gn-ws", "groups": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "norm", "same"), SAME_IN_A_NETWORK)
def test_what_is_the_same_computation_in_a_network_has_one_id(model: Any, norm: Any, same: Any) -> None:
    ours, theirs = (parse_experiment({"model": model, "norm": form}) for form in (norm, same))
    assert ours.run_id == theirs.run_id
    assert parse_experiment(ours.to_json()).run_id == ours.run_id
    networks = [build(MODELS.parse(model), (1, 8, 8), 3, NORMS.parse(form), False, seed=0) for form in (norm, same)]
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(networks[0](images), networks[1](images), rtol=0, atol=1e-6)


def test_what_differs_in_a_network_has_its_own_id() -> None:
    forms: list[Any] = [
        "gn",
        {"name": "gn", "group_size": 4},
        {"name": "gn", "group_size": 2},
        "scale",
        "scale-layerwise",
    ]
    forms += [{"name": "scale", "factor": 2}, {"name": "scale-layerwise", "factor": 2}, "none"]
    ids = {parse_experiment({"model": {"name": "mlp", "widths": [8, 12]}, "norm": form}).run_id for form in forms}
    assert len(ids) == len(forms)
    images = {"model": "cnn", "dataset": "cifar10"}
    forms = ["ws-scaled", {"name": "ws-scaled", "layers": "all"}, {"name": "ws-scaled", "learned": False}]
    assert len({parse_experiment({**images, "norm": form}).run_id for form in forms}) == len(forms)


def test_groups_and_their_size_are_one_choice() -> None:
    with pytest.raises(InvalidExperiment, match="norm: give either groups or group_size"):
        parse_experiment({"norm": {"name": "gn-static", "groups": 2, "group_size": 4}})


def gradients(network: torch.nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(network(x)[1].square().sum(), list(network.parameters()))


def test_a_norm_with_settings_of_its_own_is_its_own_canonical_form() -> None:
    for name in ("ln", "gn", "gn-static", "ln-static", "ln-channel", "ln-before", "none"):
        assert NORMS.parse(name).canonical() == NORMS.parse(name)


@dataclass(frozen=True)
class Dull(Stage):
    """A layer from elsewhere, without any place for a norm."""

    def output(self, shape: Shape) -> Shape:
        return (4,)

    def sites(self, shape: Shape, last: bool) -> tuple[Site, ...]:
        return ()


@dataclass(frozen=True)
class Staged(Model):
    def stages(self) -> tuple[Stage, ...]:
        return (Dull(),)


@dataclass(frozen=True)
class SelfBuilt(Model):
    """A model that builds its own torch modules; it knows group normalization and no other."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        layers = [nn.GroupNorm(norm.groups, 6)] if type(norm) is GroupedNorm else []

        class Network(nn.Sequential):
            pass

        return Network(nn.Conv2d(image[0], 6, 3), *layers)


@pytest.mark.parametrize(
    ("model", "fitting"),
    [
        (Staged(), {"none", "fn", "fn-layerwise", "scale", "scale-layerwise", "mean-last", "bn-last"}),
        (SelfBuilt(), {"none", "gn"}),
    ],
)
def test_a_norm_that_would_change_nothing_is_refused(
    model: Model, fitting: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model), "name", "elsewhere", raising=False)
    monkeypatch.setitem(MODELS.classes, "elsewhere", type(model))
    for name in sorted(NORMS.classes):
        if name in fitting:
            assert parse_experiment({"model": "elsewhere", "norm": name}).model == model
            continue
        reasons = "change nothing|no residual|no layer|know no stack"
        with pytest.raises(InvalidExperiment, match=rf"^norm: {name}\S* in elsewhere: .*({reasons})"):
            parse_experiment({"model": "elsewhere", "norm": name})


def test_a_norm_with_which_a_model_cannot_build_itself_is_a_mistake() -> None:
    problem = SelfBuilt().norm_problem(NORMS.parse({"name": "gn", "groups": 4}), (1, 8, 8), 10)
    assert problem is not None
    assert "cannot be built with it" in problem
    assert "must be divisible" in problem


def test_statistics_over_a_batch_need_two_samples() -> None:
    needs_two = {name for name in NORMS.classes if NORMS[name].smallest_batch == 2}
    assert needs_two == {"bn", "bn-static", "mean-last", "bn-last", "silobn", "fixbn", "fedtan"}


def test_new_fields_stay_out_of_the_identity_at_their_defaults() -> None:
    for name in NORMS.classes:
        assert NORMS.parse(name).identity() == {"name": name, "version": 1}
    assert NORMS.parse({"name": "fn", "variant": "code"}).label() == "fn(variant=code)"


def test_a_norm_in_float32_keeps_channels_last_images_as_they_are() -> None:
    """A copy into another layout and back would cost more than the norm."""
    x = torch.rand(4, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    for name in ("ln", "ln-static", "ln-channel", "gn", "gn-static", "bn", "fn-layerwise", "ln-reduced", "rms"):
        layer = NORMS.parse(name).layer(Site("after", (8, 6, 6)))
        assert layer(x).is_contiguous(memory_format=torch.channels_last), name
