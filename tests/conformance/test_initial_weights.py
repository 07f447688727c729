"""Conformance of models: initial weights depend only on the seed and the network."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from flbench.models.architectures.text import Text
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.models.sites import Shape
from flbench.registry import MODELS, NORMS
from flbench.streams import stream

IMAGE: Shape = (3, 32, 32)


class Attention(nn.Module):
    """Modules without ``reset_parameters``, and parameters that the model itself creates."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(pixels))
        self.register_buffer("places", torch.rand(pixels))
        self.attention = nn.MultiheadAttention(pixels, 4, batch_first=True)
        self.head = nn.Linear(pixels, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = images.flatten(2) + self.token
        features = self.attention(x, x, x)[0].mean(1)
        return features, self.head(features)


@dataclass(frozen=True)
class SelfBuilt(Model):
    """A model of another package that builds its own torch modules."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        return Attention(image[1] * image[2], classes)


def taken_by(model: Model) -> Shape:
    """The shape of a sample that a model takes."""
    return (8, 20) if isinstance(model, Text) else IMAGE


def weights(model: Model, seed: int, norm: str = "bn") -> dict[str, Tensor]:
    return build(model, taken_by(model), 10, NORMS.parse(norm), True, seed=seed).state_dict()


def assert_same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        assert torch.equal(leaf, right[name]), name


SETTINGS = {"resnet18": {"width": 8}, "torchvision": {"arch": "shufflenet_v2_x0_5"}}

#: Every model, the largest with fewer channels.
MODELS_BY_NAME: dict[str, Model] = {
    name: MODELS.parse({"name": name, **SETTINGS.get(name, {})}) for name in MODELS.classes
}


@pytest.mark.parametrize("model", [*MODELS_BY_NAME.values(), SelfBuilt()], ids=lambda model: type(model).__name__)
def test_equal_seeds_give_equal_weights_after_any_other_draws(model: Model) -> None:
    first = weights(model, seed=3)
    torch.rand(1234)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert_same_bits(weights(model, seed=3), first)
    other = weights(model, seed=4)
    drawn = [name for name, leaf in first.items() if leaf.is_floating_point() and leaf.unique().numel() > 1]
    assert drawn
    assert all(not torch.equal(first[name], other[name]) for name in drawn)


def test_a_self_built_model_draws_every_weight_from_the_seed() -> None:
    drawn = weights(SelfBuilt(), seed=0)
    assert {"token", "places", "attention.in_proj_weight", "attention.out_proj.weight"} <= drawn.keys()
    state = torch.get_rng_state()
    weights(SelfBuilt(), seed=0)
    assert torch.equal(torch.get_rng_state(), state)


BY_LAYERS = {name: model for name, model in MODELS_BY_NAME.items() if model.initialized_by() != "build"}


@pytest.mark.parametrize("model", BY_LAYERS.values(), ids=BY_LAYERS)
def test_modules_reset_themselves_with_a_generator_for_their_name(model: Model) -> None:
    with torch.random.fork_rng(devices=[]):
        network = model.build(taken_by(model), 10, NORMS.parse("bn"), True)
        for path, module in network.named_modules():
            if hasattr(module, "reset_parameters"):
                torch.manual_seed(int(stream(3, f"init/{path}").integers(2**63)))
                module.reset_parameters()
    assert_same_bits(weights(model, seed=3), network.state_dict())
