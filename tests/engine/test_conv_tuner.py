"""The choice among ways to convolve, with a clock that says what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flbench.engine import conv_tuner
from flbench.engine.conv_tuner import ConvShape, ConvTuner
from flbench.engine.optimizers import Sgd
from flbench.methods.base import Method
from flbench.models.layers import Conv
from tests.recording import rerun
from tests.toys import largest_difference, toy_images, toy_network, toy_trainer, train

IMAGE = (2, 8, 8)


class Clock:
    """Says that the way in ``fastest`` is; ways come in the same order for every shape."""

    def __init__(self, *fastest: str) -> None:
        self._turns = iter([(way, each) for each in fastest for way in conv_tuner.CONVOLUTIONS])

    def __call__(self, launch: Callable[[], object], times: int) -> float:
        launch()
        way, fastest = next(self._turns)
        return 1.0 if way == fastest else 2.0


def test_each_layer_is_measured_once_and_gets_its_own() -> None:
    network = toy_network("toy-cnn", image=IMAGE)
    names = [name for name, layer in network.named_modules() if isinstance(layer, Conv)]
    tuner = ConvTuner(rerun, Clock("streamed", "grouped"), "cpu")
    for _ in range(2):  # the second time nothing is measured: the clock has nothing more to say
        assert tuner.tune(network, 3, (5, *IMAGE), None) == dict(zip(names, ["streamed", "grouped"], strict=True))
    assert [network.get_submodule(name).stacked_as for name in names] == ["streamed", "grouped"]
    first, second = tuner._fastest
    window: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dtype": torch.float64, "tf32": first.tf32}
    assert first == ConvShape(x=(3, 5, 2, 8, 8), weight=(3, 4, 2, 3, 3), of_x=False, **window)
    assert second == ConvShape(x=(3, 5, 4, 3, 3), weight=(3, 6, 4, 2, 2), of_x=True, **window)


def test_a_way_that_fails_is_not_chosen() -> None:
    def picky(call: Any) -> Any:
        picky.calls += 1  # type: ignore[attr-defined]
        if picky.calls % 2 != 0:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("no room")
        return rerun(call)

    picky.calls = 0  # type: ignore[attr-defined]
    network = toy_network("toy-cnn", image=IMAGE)
    assert set(ConvTuner(picky, lambda launch, times: 1.0, "cpu").tune(network, 2, (5, *IMAGE), None).values()) == {
        "streamed"
    }


@pytest.mark.parametrize("norm", ["ln", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fn", "gn", "in", "rms"))])
@pytest.mark.parametrize("way", sorted(conv_tuner.CONVOLUTIONS))
def test_training_has_the_same_numbers_in_every_way(way: str, norm: str) -> None:
    """Each leaves its images in another layout, which all that comes after must take."""
    settings: dict[str, Any] = {"model": "toy-resnet18", "image": IMAGE, "images": toy_images(IMAGE), "norm": norm}
    tuner = ConvTuner(rerun, Clock(*[way] * 20), "cpu")
    tuned = toy_trainer(
        Method(), executor="stacked", record=rerun, tuner=tuner, sgd=Sgd(1e-3), batch_size=3, **settings
    )
    loop = toy_trainer(Method(), sgd=Sgd(1e-3), batch_size=3, **settings)
    train(2, tuned, loop)
    assert set(tuned.convolutions.values()) == {way}
    assert largest_difference(tuned.x, loop.x) < 1e-10
