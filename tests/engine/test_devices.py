"""A whole round on a GPU that is only imagined: torch follows devices and shapes, and nothing is computed.

It finds whatever is left on the CPU, or is read there. The backward pass is replaced: torch's needs a real device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from flbench.engine.draws import draw_together
from flbench.engine.executors import StackedExecutor
from flbench.engine.local import Sgd
from flbench.engine.rounds import FederatedTrainer
from flbench.engine.whole import Member, RoundFunction
from flbench.errors import UserError
from flbench.methods.base import Method, Tree
from flbench.models.convolutions import CONVOLUTIONS
from flbench.registry import METHODS
from tests.engine.test_graphs import group
from tests.toys import toy_clients, toy_images, toy_trainer

IMAGE = (2, 8, 8)


def imagined(leaf: Tensor) -> Tensor:
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="cuda")


def tree_of(tree: Tree) -> Tree:
    return {name: imagined(leaf) for name, leaf in tree.items()}


def moved(trainer: FederatedTrainer) -> Member:
    """The trainer's constants on the device."""
    member = trainer.member()
    images = member.draws.images
    names = ("train_MCHW", "train_labels_M", "test_MCHW", "test_labels_M")
    on_gpu = replace(images, **{name: imagined(getattr(images, name)) for name in names})
    return replace(member, draws=replace(member.draws, images=on_gpu), counts_NY=imagined(member.counts_NY))


def round_on_gpu(trainers: Sequence[FederatedTrainer], monkeypatch: pytest.MonkeyPatch, chunk: int) -> list[Tree]:
    given = draw_together([trainer.draws for trainer in trainers], [0] * len(trainers))
    states = [trainer.open_state() for trainer in trainers]
    executor = trainers[0].executor
    assert isinstance(executor, StackedExecutor)

    def gradients(outputs: Tensor, inputs: Sequence[Tensor], *_: Any, **__: Any) -> tuple[Tensor, ...]:
        assert outputs.is_cuda
        return tuple(torch.empty_like(leaf) for leaf in inputs)

    monkeypatch.setattr(torch.autograd, "grad", gradients)
    with FakeTensorMode(allow_non_fake_inputs=False):
        function = RoundFunction([moved(trainer) for trainer in trainers], executor.train_stack, chunk)
        return function([tree_of(tree) for tree in [given, *(tree for state in states for tree in state.trees())]])


def expect(outputs: Sequence[Tree], trainers: Sequence[FederatedTrainer]) -> None:
    """Everything is on the device, and the state as it was in names, shapes and kinds."""
    assert all(leaf.device.type == "cuda" for tree in outputs for leaf in tree.values())
    before = [tree for trainer in trainers for tree in trainer.open_state().trees()]
    for old, new in zip(before, outputs[2:], strict=True):
        assert {name: (leaf.shape, leaf.dtype) for name, leaf in old.items()} == {
            name: (leaf.shape, leaf.dtype) for name, leaf in new.items()
        }


@pytest.mark.parametrize("participation", [0.67, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_stays_on_the_device(method: str, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    images = replace(toy_images(), augment=True)
    settings: dict[str, Any] = {"norm": "bn", "participation": participation, "images": images}
    trainer = toy_trainer(METHODS.parse(method), executor="stacked", sgd=Sgd(0.1, 0.9, 0.01), **settings)
    expect(round_on_gpu([trainer], monkeypatch, chunk=2), [trainer])


@pytest.mark.parametrize("method", METHODS.names())
def test_runs_trained_together_stay_on_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = group(method, norm="ln")
    expect(round_on_gpu(trainers, monkeypatch, chunk=4), trainers)


def test_unequal_steps_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy_trainer(METHODS.parse("scaffold"), executor="stacked", steps=[1, 3, 2], norm="bn")
    expect(round_on_gpu([trainer], monkeypatch, chunk=3), [trainer])


@pytest.mark.parametrize("norm", ["none", "fn", "ln", "gn", "bn", "in", "rms"])
@pytest.mark.parametrize("model", ["toy-cnn", "toy-resnet18"])
def test_networks_of_convolutions_stay_on_the_device(model: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"model": model, "norm": norm, "image": IMAGE, "images": toy_images(IMAGE)}
    trainer = toy_trainer(METHODS.parse("fedavg"), executor="stacked", batch_size=3, clients=toy_clients(), **settings)
    expect(round_on_gpu([trainer], monkeypatch, chunk=3), [trainer])


@dataclass(frozen=True)
class Careless(Method):
    """A method that makes a tensor where nobody said."""

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, participation: float) -> tuple[Tree, Tree]:
        return {name: leaf + torch.ones(leaf.shape, dtype=leaf.dtype) for name, leaf in x.items()}, state


def test_what_is_left_on_the_cpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"the hook server_step of the method 'Careless' raised .* same device"):
        round_on_gpu([toy_trainer(Careless(), executor="stacked")], monkeypatch, chunk=3)


def test_patches_stay_on_the_device() -> None:
    with FakeTensorMode():
        options: dict[str, Any] = {"device": "cuda"}
        x, weight = torch.empty(2, 3, 4, 8, 8, **options), torch.empty(2, 5, 4, 3, 3, **options)
        expected = CONVOLUTIONS["grouped"](x, weight, (2, 2), (1, 1))
        found = CONVOLUTIONS["unfolded"](x, weight, (2, 2), (1, 1))
    assert found.shape == expected.shape == (2, 3, 5, 4, 4)
    assert found.device.type == "cuda"
