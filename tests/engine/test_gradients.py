"""The gradient by hand against its slow twin by autograd."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from flbench.engine import device_data, executors
from flbench.engine.dense_stack import dense_layers
from flbench.engine.gradients import rounds_by_hand
from flbench.engine.optimizers import Adam, Sgd
from flbench.errors import UserError
from flbench.methods.base import Batch, Context, Method, Tree, tmap
from flbench.models.initial_weights import build
from flbench.registry import HEADS, METHODS, MODELS, NORMS
from flbench.testing import check_method
from tests.toys import everything, largest_difference, same_bits, toy_images, toy_network, toy_trainer, train

#: Layers of few and of many outputs lie differently in memory.
WIDTHS = ([33, 40], [6, 8])
#: Methods whose gradient by hand is not in the order of autograd's operations.
ROUNDED = [name for name, method in METHODS.classes.items() if rounds_by_hand(method)]
NORM_NAMES = ("none", "fn", "ln", "ln-before", "bn", "bn-last")


def both_ways(monkeypatch: pytest.MonkeyPatch, method: str | Method, norm: str = "none", **changes: Any) -> list[Any]:
    """Return trainers after two rounds, with gradients by hand and by autograd."""
    given = {"widths": [33, 40], "head": "linear", "bias": True, "dtype": torch.float32} | changes
    model = MODELS.parse({"name": "mlp", "widths": given.pop("widths")})
    head, bias, dtype = HEADS.parse(given.pop("head")), given.pop("bias"), given.pop("dtype")
    network = build(model, (1, 8, 8), 3, NORMS.parse(norm), bias, seed=3, dtype=dtype, head=head)
    assert dense_layers(network)
    given |= {"network": network, "images": replace(toy_images(), dtype=dtype), "executor": "stacked"}
    chosen = method if isinstance(method, Method) else METHODS.parse(method)
    by_hand = toy_trainer(chosen, **given)
    with monkeypatch.context() as patch:
        patch.setattr(executors, "dense_layers", lambda network: None)
        by_autograd = toy_trainer(chosen, **given)
    train(2, by_hand, by_autograd)
    return [by_hand, by_autograd]


@pytest.mark.parametrize("norms", [["none"], pytest.param(NORM_NAMES[1:], marks=pytest.mark.slow)], ids=["", "norms"])
@pytest.mark.parametrize("method", METHODS.classes)
def test_both_ways_have_the_same_bits(method: str, norms: list[str]) -> None:
    for norm, widths in product(NORM_NAMES if method == "fedavg" else norms, WIDTHS):
        with pytest.MonkeyPatch.context() as patch:
            dtype = torch.float64 if method in ROUNDED else torch.float32
            pair = both_ways(patch, method, norm, widths=widths, sgd=Sgd(0.01, momentum=0.5), dtype=dtype)
        if method in ROUNDED:
            assert largest_difference(*map(everything, pair)) < 1e-12, (norm, widths)
        else:
            assert same_bits(*pair), (norm, widths)


@dataclass(frozen=True)
class Pulled(Method):
    """Pulls weights, features and logits to 0, with the gradient by hand."""

    mu: float = 0.01

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        return z_BY * (1 + (ctx.counts_Y > 0).to(z_BY.dtype))

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
        squares = [batch.features_BD.square().sum(), batch.logits_BY.square().sum(), w[ctx.head].square().sum()]
        return self.mu / 2 * (squares[0] + squares[1] + squares[2])

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        given = {"features_BD": batch.features_BD, "logits_BY": batch.logits_BY, ctx.head: w[ctx.head]}
        return tmap(lambda leaf: self.mu * leaf, given)


@dataclass(frozen=True)
class PulledElementwise(Pulled):
    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Otherwise(Pulled):
    """Has no gradient of its own penalty."""

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
        return 2 * super().penalty(w, batch, ctx)


@pytest.mark.parametrize(
    "method", [Pulled(), PulledElementwise(), Otherwise()], ids=lambda method: type(method).__name__
)
def test_a_gradient_by_hand_is_that_of_the_penalty(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, and of runs with different hyperparameters; that of another penalty is not used."""
    pair = both_ways(monkeypatch, method, dtype=torch.float64)
    assert largest_difference(*map(everything, pair)) < 1e-12
    assert (
        largest_difference(everything(pair[0]), everything(both_ways(monkeypatch, "fedavg", dtype=torch.float64)[0]))
        > 0
    )
    check_method(method)


def test_what_is_wrong_with_a_gradient_by_hand_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Wrong(Pulled):
        def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
            return {"logits_BY": batch.features_BD}

    @dataclass(frozen=True)
    class Misnamed(Pulled):
        def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
            return {"logits": batch.logits_BY}

    @dataclass(frozen=True)
    class Alone(Method):
        penalty_gradient = Pulled.penalty_gradient

    @dataclass(frozen=True)
    class OwnLoss(Method):
        def loss(self, w: Tree, batch: Batch, ctx: Context) -> Any:
            return batch.logits_BY.square().mean()

        def loss_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Any:
            return self.loss(w, batch, ctx), {"logits": batch.logits_BY}

    @dataclass(frozen=True)
    class NoValue(OwnLoss):
        loss = OwnLoss.loss

        def loss_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Any:
            return {"logits_BY": batch.logits_BY}

    @dataclass(frozen=True)
    class Vector(OwnLoss):
        loss = OwnLoss.loss

        def loss_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Any:
            return batch.logits_BY[:, 0], {}

    @dataclass(frozen=True)
    class LossAlone(Method):
        loss_gradient = OwnLoss.loss_gradient

    for method, problem in (
        (OwnLoss(), r"loss_gradient .* returned 'logits'; expected some of the names 'features_BD', 'logits_BY', "),
        (NoValue(), r"loss_gradient .* returned dict; expected a pair: \(the value, the gradient\)"),
        (Vector(), r"loss_gradient .* returned a tensor of shape \(5,\) as the loss; expected a tensor of shape \(\)"),
        (LossAlone(), r"loss_gradient .* is never called: define the loss, too"),
        (Wrong(), r"penalty_gradient .* returned .* as 'logits_BY'; expected a tensor of shape"),
        (Misnamed(), r"penalty_gradient .* returned 'logits'; expected some of the names 'features_BD', 'logits_BY', "),
        (Alone(), r"penalty_gradient .* is never called: define the penalty, too"),
    ):
        with pytest.raises(UserError, match=problem):
            both_ways(monkeypatch, method)


OTHER_SETTINGS: dict[str, dict[str, Any]] = {
    "no bias": {"bias": False},
    "a projection": {"head": "projection"},
    "unequal steps": {"steps": [3, 1, 5]},
    "partial batches": {"drop_last": False, "steps": [4, 3, 6]},
    "adam": {"sgd": Adam(0.01)},
    "a clipped gradient": {"sgd": Sgd(0.1, clip_norm=0.1, weight_decay=0.01)},
    "chunks": {"chunk": 2},
}


@pytest.mark.parametrize("settings", OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_other_settings_have_the_same_bits(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert same_bits(*both_ways(monkeypatch, "fedavg", **settings))


@pytest.mark.parametrize("method", ["fedavg", "moon", "fedsam"])
def test_both_ways_agree_in_float64(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand, by_autograd = map(everything, both_ways(monkeypatch, method, dtype=torch.float64))
    assert largest_difference(by_hand, by_autograd) < 1e-10


@pytest.mark.parametrize(
    ("settings", "dense"),
    [
        ({}, True),
        ({"norm": "bn"}, True),
        ({"norm": "ws"}, False),
        ({"head": "projection"}, True),
        ({"head": "cosine"}, False),
        ({"model": "toy-cnn"}, False),
        ({"model": "toy-vit"}, False),
    ],
    ids=str,
)
def test_the_network_decides(settings: dict[str, Any], dense: bool) -> None:
    norm = {"name": "ws", "layers": "all"} if settings.get("norm") == "ws" else settings.get("norm", "none")
    assert (dense_layers(toy_network(**{**settings, "norm": norm})) is not None) == dense


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_images_converted_once_have_the_bits_of_images_converted_in_batches(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, in_batches = (toy_trainer(METHODS.parse("fedavg"), executor=executor) for _ in range(2))
    train(2, once)
    monkeypatch.setattr(device_data, "CONVERTED_ONCE", 0)
    train(2, in_batches)
    assert same_bits(once, in_batches)
