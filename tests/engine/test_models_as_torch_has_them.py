"""Models as users write them in plain torch: loop and stack train alike, and no method moves what is frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from flbench.engine.federated import FederatedTrainer
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.models.sites import Shape
from flbench.registry import METHODS
from tests.own_models import Halves
from tests.samples import fast
from tests.toys import TOY_MODELS, check_every_way, everything, largest_difference, toy_trainer, train

IMAGE: Shape = (1, 8, 8)


def bn_cnn(classes: int) -> nn.Module:
    """Convolution, batch normalization, ReLU, adaptive pooling."""
    body = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return Halves(nn.Sequential(*body), nn.Linear(128, classes))


class Rows(nn.Module):
    """A transformer encoder with dropout over the rows of an image as tokens."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.emb = nn.Linear(8, 32)
        self.enc = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.enc(self.emb(x[:, 0])).mean(1)
        return features, self.head(features)


def given_body(classes: int) -> nn.Module:
    """A frozen weight, whose layer still trains its bias."""
    first = nn.Linear(64, 16)
    nn.init.constant_(first.weight, 0.5)
    first.weight.requires_grad_(False)
    return Halves(nn.Sequential(nn.Flatten(), first, nn.ReLU()), nn.Linear(16, classes))


class Tied(nn.Module):
    """One matrix in two layers, once transposed, buffers of three kinds, and an activation in place."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 6, bias=False), nn.Linear(64, 6)
        self.second.weight = self.first.weight
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(12, classes)
        self.register_buffer("halves", torch.full((6,), 0.5, dtype=torch.float16))
        self.register_buffer("apart", torch.ones(6), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.uint8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.first(x.flatten(1)), self.second(x.flatten(1)) * self.halves * self.apart
        features = self.relu(torch.cat([first, second], 1))
        return features, self.head(features)


class Mobile(nn.Module):
    """Torchvision's mobilenet_v3_small with a frozen body."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from torchvision.models import mobilenet_v3_small

        net = mobilenet_v3_small(weights=None)
        self.body, self.head = net.features.requires_grad_(False), nn.Linear(576, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = nn.functional.interpolate(x.expand(-1, 3, -1, -1), size=32)
        features = self.body(x).mean((2, 3))
        return features, self.head(features)


@dataclass(frozen=True)
class OfUser(Model):
    """A model whose ``build`` is a function of the classes."""

    make: Callable[[int], nn.Module] = bn_cnn

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        return self.make(classes)


@pytest.mark.parametrize("make", [bn_cnn, Rows, given_body, Tied], ids=lambda make: make.__name__)
def test_loop_and_stack_train_them_alike(make: Callable[[int], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOY_MODELS, "of-user", OfUser(make))
    trainer = partial(toy_trainer, Method(), model="of-user", steps=[3, 1, 2])
    start, one = trainer(), check_every_way(trainer, fused=False)
    assert all(not torch.equal(leaf, one.x[name]) for name, leaf in start.x.items())
    assert {name: leaf.dtype for name, leaf in one.buffers.items()} == {n: b.dtype for n, b in start.buffers.items()}
    assert ("body.1.weight" in one.buffers) == (make is given_body)


@cache
def mobile() -> nn.Module:
    return build(OfUser(Mobile), IMAGE, 3, Norm(), False, seed=3, dtype=torch.float64)


def frozen_mobile(method: str, executor: str, participation: float) -> FederatedTrainer:
    own, network = METHODS.parse(method), mobile()
    size = max(2, own.smallest_batch)
    return toy_trainer(own, network=network, executor=executor, steps=1, batch_size=size, participation=participation)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.classes)
def test_a_stack_of_frozen_mobilenets_trains_as_the_loop_does(method: str) -> None:
    loop, stack = (frozen_mobile(method, executor, 0.67) for executor in ("loop", "stacked"))
    train(1, loop, stack)
    assert largest_difference(everything(stack), everything(loop)) < 1e-12


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "scaffold", "ditto", "fedbabu", "fedproto"))
def test_a_frozen_mobilenet_keeps_weights_and_statistics_under_every_method(method: str) -> None:
    one = frozen_mobile(method, "loop", 0.34)
    before = {name: leaf.clone() for name, leaf in one.model(0)[1].items()}
    assert len(before) > 200 and {name.partition(".")[0] for name in before} == {"body"}
    first = one.x["head.weight"].clone() if "head.weight" in one.x else one.local["head.weight"].clone()
    train(1, one)
    for client in range(3):
        params, buffers = one.model(client)
        assert all(torch.equal(buffers[name], leaf) for name, leaf in before.items())
        assert params.keys() == {"head.weight", "head.bias"}
    assert torch.equal(first, (one.x or one.local)["head.weight"]) == (method == "fedbabu")
    assert one.bytes_up <= 2 * 8 * (577 * 3) + 3 * 8 * 576  # a change, and at most a message of its size


def test_a_layer_without_a_shape_is_named() -> None:
    def lazy(classes: int) -> nn.Module:
        return Halves(nn.Sequential(nn.Flatten(), nn.LazyLinear(6)), nn.Linear(6, classes))

    OfUser.name = "of-user"
    with pytest.raises(UserError, match=r"model of-user.*: body\.1\.weight has no shape yet; pass images through"):
        build(OfUser(lazy), IMAGE, 3, Norm(), False, seed=0)


class Headless(nn.Module):
    """A network whose last layer flbench cannot find."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(IMAGE[0] * IMAGE[1] * IMAGE[2], 6), nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(x.flatten(1)).relu()
        return features, self.classifier(features)


@pytest.mark.parametrize("method", [name for name, cls in METHODS.classes.items() if cls.trains_head])
def test_methods_of_the_head_refuse_a_network_without_one(method: str) -> None:
    """FedBABU froze all of such a network, and trained nothing."""
    network = build(OfUser(Headless), IMAGE, 3, Norm(), False, seed=3, dtype=torch.float64)
    with pytest.raises(UserError, match="head"):
        toy_trainer(METHODS.parse(method), network=network)
