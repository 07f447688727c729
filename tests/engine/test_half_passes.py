"""Passes in bfloat16 by hand have the bits of autograd under autocast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flbench.config import parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.engine.federated import FederatedTrainer
from flbench.engine.gradients import ByAutograd, ByHand
from flbench.engine.half_passes import HalfPasses
from flbench.engine.setup import make_trainer
from flbench.models.initial_weights import build
from flbench.registry import MODELS, NORMS
from tests.toys import same_bits, train


def images(channels: int, side: int) -> Data:
    random = np.random.default_rng(0)

    def part(samples: int) -> Arrays:
        pixels = random.integers(0, 256, (samples, channels, side, side), dtype=np.uint8)
        return Arrays(pixels, np.arange(samples) % 3)

    return Data(part(60), part(6), 3, tuple("012"), 255, "")


def trained(data: Data, *, by_hand: bool = True, **fields: Any) -> tuple[FederatedTrainer, set[type]]:
    """Return a trainer after two rounds, and the ways in which it computed gradients."""
    used: set[type] = set()

    def noted(gradient: Any, *args: Any) -> Any:
        used.add(type(gradient))
        return calls[type(gradient)](gradient, *args)

    known = {"dataset": "cifar10", "precision": "bf16", "clients": 3, "partition": "iid", "E": 2, "batch_size": 8}
    calls = {kind: kind.__call__ for kind in (ByAutograd, ByHand)}
    with pytest.MonkeyPatch.context() as patch:
        for kind in calls:
            patch.setattr(kind, "__call__", noted)
        if not by_hand:
            patch.setattr(HalfPasses, "of", lambda network: None)
        experiment = parse_experiment(known | {"lr": 0.1} | fields)
        trainer = make_trainer(experiment, data, device="cpu", executor="loop", pool=1)[0]
        assert isinstance(trainer, FederatedTrainer)
        train(2, trainer)
    return trainer, used


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"model": "cnn"}, (3, 32)),
        ({"model": "cnn", "method": "fedlc", "momentum": 0.9}, (3, 28)),
        ({"model": "cnn-table7", "method": "scaffold"}, (1, 30)),  # pooling of odd sides, by torch
        ({"model": "lenet", "method": "fedsam", "batch_size": 1}, (1, 28)),
        ({"model": {"name": "mlp", "widths": [16]}, "weight_decay": 0.1}, (1, 8)),
    ],
)
def test_has_the_bits_of_autograd(fields: dict[str, Any], shape: tuple[int, int]) -> None:
    data = images(*shape)
    hand, autograd = (trained(data, by_hand=by_hand, **fields) for by_hand in (True, False))
    assert hand[1] == {ByHand} and autograd[1] == {ByAutograd}
    assert same_bits(hand[0], autograd[0])


@pytest.mark.parametrize("method", ["fedprox", "moon"])
def test_losses_with_other_terms_are_left_to_autograd(method: str) -> None:
    assert trained(images(1, 28), model="lenet", method=method)[1] == {ByAutograd}


def test_frozen_weights_are_left_to_autograd() -> None:
    assert trained(images(1, 28), model="lenet", train="head")[1] == {ByAutograd}


@pytest.mark.parametrize(
    ("model", "norm", "bias"),
    [("cnn", "none", True), ("cnn", "gn", False), ("cnn", "fn", False), ("resnet18", "none", False)],
)
def test_other_networks_are_left_to_autograd(model: str, norm: str, bias: bool) -> None:
    network = build(MODELS.parse(model), (3, 32, 32), 10, NORMS.parse(norm), bias, seed=0, dtype=torch.float32)
    assert HalfPasses.of(network) is None
