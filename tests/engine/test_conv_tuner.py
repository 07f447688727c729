"""The choice among ways to convolve, with a clock that says what it is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flbench.engine import conv_tuner
from flbench.engine.conv_tuner import ConvTuner
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Sgd
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.models.layers import Conv
from tests.recording import rerun
from tests.toys import largest_difference, toy_images, toy_trainer, train

IMAGE = (2, 8, 8)


class Clock:
    """Says that the way in ``fastest`` is, for one kind of round after the other."""

    def __init__(self, *fastest: str) -> None:
        self._turns = iter([(way, each) for each in fastest for way in conv_tuner.CONVOLUTIONS])

    def __call__(self, launch: Callable[[], object], times: int) -> float:
        launch()
        way, fastest = next(self._turns)
        return 1.0 if way == fastest else 2.0


def trainer(tuner: ConvTuner | None = None, **settings: Any) -> FederatedTrainer:
    executed = {} if tuner is None else {"executor": "stacked", "record": tuner.record, "tuner": tuner}
    images = {"model": "toy-cnn", "image": IMAGE, "images": toy_images(IMAGE)}
    return toy_trainer(Method(), sgd=Sgd(1e-3), batch_size=3, **{**images, **executed, **settings})


def test_every_kind_of_round_is_measured_once_and_all_layers_take_the_fastest_way() -> None:
    tuner = ConvTuner(rerun, Clock("streamed", "grouped"))
    first, second, longer = trainer(tuner, seed=0), trainer(tuner, seed=1), trainer(tuner, steps=5)
    train(2, first, second, longer)
    chosen = [set(made.convolutions.values()) for made in (first, second, longer)]
    assert chosen == [{"streamed"}, {"streamed"}, {"grouped"}]
    assert isinstance(first.executor, StackedExecutor)
    layers = {name: layer for name, layer in first.executor._network.named_modules() if isinstance(layer, Conv)}
    assert {name: layer.stacked_as for name, layer in layers.items()} == first.convolutions != {}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, UserError])
def test_a_way_that_fails_is_not_chosen(error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="flbench")

    def record(call: Any) -> Any:
        if any(layer.stacked_as == "grouped" for layer in made.executor._network.modules() if isinstance(layer, Conv)):
            raise error("no room")
        return rerun(call)

    made: Any = trainer(ConvTuner(record, lambda launch, times: 1.0))
    made.step()
    assert set(made.convolutions.values()) == {"streamed"}
    assert "grouped convolutions are out: no room" in caplog.text


def test_a_network_without_convolutions_is_not_measured() -> None:
    made = trainer(ConvTuner(rerun, Clock()), model="mlp")
    made.step()
    assert made.convolutions == {}


@pytest.mark.parametrize(
    "norm",
    [
        "ln",
        pytest.param("gn", marks=pytest.mark.slow),
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ("fn", "in", "rms")),
    ],
)
@pytest.mark.parametrize("way", sorted(conv_tuner.CONVOLUTIONS))
def test_training_has_the_same_numbers_in_every_way(way: str, norm: str) -> None:
    """Each leaves its images in another layout, which all that comes after must take. Trials leave no trace."""
    tuner = ConvTuner(rerun, Clock(way))
    tuned, loop = (trainer(each, model="toy-resnet18", norm=norm) for each in (tuner, None))
    train(2, tuned, loop)
    assert set(tuned.convolutions.values()) == {way}
    assert largest_difference(tuned.x, loop.x) < 1e-10
