"""The model ``torchvision``: names, heads, normalizations of the axis, and torchvision's own weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flbench.config import InvalidExperiment, parse_experiment
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.models.architectures.torchvision_models import ARCHITECTURES
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.masks import SampleDropout
from flbench.models.starts import TorchvisionWeights, WeightsFile
from flbench.models.weight_files import start_from
from flbench.registry import MODELS, NORMS
from tests.toys import TOY_MODELS, check_every_way, toy_trainer

#: The smallest: 0.3 million weights without the head.
TINY = "shufflenet_v2_x0_5"


def model(arch: str = TINY, **settings: Any) -> Model:
    spec: Model = MODELS.parse({"name": "torchvision", "arch": arch, **settings})
    return spec


def network(spec: Model, norm: Any = "none", classes: int = 3, seed: int = 0) -> nn.Module:
    return build(spec, (1, 32, 32), classes, NORMS.parse(norm), False, seed=seed)


def kinds(of: nn.Module) -> set[str]:
    return {type(one).__name__ for one in of.modules() if "Norm" in type(one).__name__ or "Tanh" in type(one).__name__}


def test_the_names_are_torchvisions() -> None:
    import torchvision.models

    known = {*torchvision.models.list_models(module=torchvision.models)}
    known -= {"squeezenet1_0", "squeezenet1_1"}  # their last layer is a convolution
    assert {*ARCHITECTURES} == known and len(ARCHITECTURES) == len(known)


@pytest.mark.parametrize("norm, layers", [
    ("none", set()), ("gn", {"GroupNorm"}), ("bn", {"BatchNorm"}), ("rms", {"RmsNorm"}), ("dyt", {"DynamicTanh"}),
    ("ln-before", {"LayerNorm"}), ("fn", {"ScaleNorm"}),
])  # fmt: skip
def test_the_axis_replaces_every_normalization(norm: str, layers: set[str]) -> None:
    made = network(model(), norm)
    assert kinds(made) == layers
    features, logits = made.eval()(torch.rand(2, 1, 32, 32))
    assert features.shape == (2, 1024) and logits.shape == (2, 3)
    torch.testing.assert_close(logits, features @ made.head.weight.T + made.head.bias)  # type: ignore[operator,union-attr]
    assert kinds(network(model(norms="own"), norm)) - layers == {"BatchNorm2d"}


def test_weights_of_the_body_are_the_same_whatever_the_norm() -> None:
    none, gn = (network(model(), norm).state_dict() for norm in ("none", "gn"))
    assert none.keys() < gn.keys() and all(torch.equal(leaf, gn[name]) for name, leaf in none.items())


@pytest.mark.slow
def test_tokens_are_normalized_one_by_one_and_stochastic_depth_has_keyed_masks() -> None:
    spec = model("swin_t")
    made = network(spec, "gn").eval()
    assert kinds(made) == {"GroupNorm"} and sum(isinstance(one, SampleDropout) for one in made.modules()) > 10
    layer = made.get_submodule("body.features.0.2")
    x = torch.rand(2, 3, 3, 96)
    torch.testing.assert_close(layer(x)[1, 2, 0], layer(x[1, 2, 0][None])[0])
    assert spec.norm_problem(NORMS.parse({"name": "gn", "groups": 5}), (1, 32, 32), 3)


def test_small_images_keep_their_size() -> None:
    small, plain = (network(model(small=value)) for value in (True, False))
    first = small.get_submodule("body.conv1.0")
    assert (first.kernel_size, first.stride, first.padding) == ((3, 3), (1, 1), (1, 1))
    assert plain.get_submodule("body.conv1.0").stride == (2, 2)
    assert isinstance(small.get_submodule("body.maxpool"), nn.Identity)
    assert isinstance(plain.get_submodule("body.maxpool"), nn.MaxPool2d)


@pytest.mark.slow
def test_loop_and_stack_train_it_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOY_MODELS, "tiny", model(size=16))
    make = partial(toy_trainer, Method(), model="tiny", norm="gn", steps=1, batch_size=2, participation=0.67)
    check_every_way(partial(make, trained="head+norm"), fused=False)


def test_torchvisions_weights_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.models

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    spec = model(norms="own")
    with pytest.raises(UserError, match=r"no file .*shufflenetv2_x0\.5-f707e7126e\.pth with .* download https://"):
        spec.weights_at(None)
    with pytest.raises(UserError, match="did you mean 'IMAGENET1K_V1'"):
        spec.weights_at("IMAGENET1K_V3")
    theirs = torchvision.models.get_model(TINY, weights=None)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(theirs.state_dict(), folder / "shufflenetv2_x0.5-f707e7126e.pth")
    start = WeightsFile(path=str(spec.weights_at("IMAGENET1K_V1")))
    for classes in (3, 1000):
        made = network(spec, classes=classes)
        start_from(made, start, spec)
        x = torch.rand(2, 3, 32, 32)
        hook: list[torch.Tensor] = []
        theirs.fc.register_forward_pre_hook(lambda module, inputs, hook=hook: hook.append(inputs[0]))
        logits = theirs.eval()(x)
        torch.testing.assert_close(made.eval()(x)[0], hook[0])
        assert classes == 3 or torch.allclose(made(x)[1], logits)
    with pytest.raises(UserError, match=r"left over body\.conv1\.1\.weight.*use model\.norms=own"):
        start_from(network(model(), "none"), start, model())
    bn = network(model(), "bn")
    start_from(bn, start, model())  # the axis's batch normalization has torchvision's names
    assert TorchvisionWeights().is_open


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"model": "torchvision:resnet81"},
            r"unknown architecture 'resnet81'; did you mean 'resnet18'\? known: (\w+, ){8}and \d+ more",
        ),
        ({"model": "torchvision"}, "model.arch: "),
        ({"model": {"name": "torchvision", "arch": "vgg11", "small": True}}, "small: vgg11 has no first layers"),
        ({"model": {"name": "torchvision", "arch": TINY, "norms": "own"}, "norm": "gn"}, "has the same layers without"),
        ({"model": f"torchvision:{TINY}", "norm": {"name": "gn", "groups": 7}}, "groups=7 does not divide a layer"),
        ({"model": f"torchvision:{TINY}", "norm": "ws"}, "no layer has weights that it can standardize|same layers"),
        ({"model": f"torchvision:{TINY}", "head": "cosine"}, "the model builds its own head"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment({"dataset": "cifar10", **fields})


@pytest.mark.slow
def test_images_of_another_size_than_the_network_takes_are_named() -> None:
    with pytest.raises(UserError, match=r"torchvision:vit_b_16: images of 32x32 pixels do not fit .* give size: 224"):
        model("vit_b_16").norm_problem(NORMS.parse("ln"), (3, 32, 32), 3)
