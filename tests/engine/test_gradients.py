"""The gradient by hand against its slow twin by autograd."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from flbench.engine import device_data, executors
from flbench.engine.dense_stack import dense_layers
from flbench.engine.optimizers import Adam, Sgd
from flbench.models.initial_weights import build
from flbench.registry import HEADS, METHODS, MODELS, NORMS
from tests.toys import everything, largest_difference, same_bits, toy_images, toy_network, toy_trainer, train

#: Layers of few and of many outputs lie differently in memory.
WIDTHS = ([33, 40], [6, 8])
NORM_NAMES = ("none", "fn", "ln", "ln-before", "bn", "bn-last")


def both_ways(monkeypatch: pytest.MonkeyPatch, method: str, norm: str = "none", **changes: Any) -> list[Any]:
    """Return trainers after two rounds, with gradients by hand and by autograd."""
    given = {"widths": [33, 40], "head": "linear", "bias": True, "dtype": torch.float32} | changes
    model = MODELS.parse({"name": "mlp", "widths": given.pop("widths")})
    head, bias, dtype = HEADS.parse(given.pop("head")), given.pop("bias"), given.pop("dtype")
    network = build(model, (1, 8, 8), 3, NORMS.parse(norm), bias, seed=3, dtype=dtype, head=head)
    assert dense_layers(network)
    given |= {"network": network, "images": replace(toy_images(), dtype=dtype), "executor": "stacked"}
    by_hand = toy_trainer(METHODS.parse(method), **given)
    monkeypatch.setattr(executors, "dense_layers", lambda network: None)
    by_autograd = toy_trainer(METHODS.parse(method), **given)
    train(2, by_hand, by_autograd)
    return [by_hand, by_autograd]


@pytest.mark.parametrize("norms", [["none"], pytest.param(NORM_NAMES[1:], marks=pytest.mark.slow)], ids=["", "norms"])
@pytest.mark.parametrize("method", METHODS.classes)
def test_both_ways_have_the_same_bits(method: str, norms: list[str]) -> None:
    for norm, widths in product(NORM_NAMES if method == "fedavg" else norms, WIDTHS):
        with pytest.MonkeyPatch.context() as patch:
            pair = both_ways(patch, method, norm, widths=widths, sgd=Sgd(0.01, momentum=0.5))
        assert same_bits(*pair), (norm, widths)


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
