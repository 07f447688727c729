"""Draws from default generators are found and named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine import setup
from flbench.engine.federated import step_together
from flbench.engine.randomness import check_network, generator_states, without_draws
from flbench.engine.setup import make_trainer
from flbench.errors import UserError
from flbench.methods.base import Context, Method, ServerContext, Tree
from flbench.models.base import Model
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.models.sites import Shape
from flbench.registry import MODELS
from tests.own_models import FunctionalDropout, Halves, ReadingModel
from tests.toys import toy_network, toy_trainer

IMAGE = (1, 8, 8)


@pytest.mark.parametrize("stacked", [False, True])
def test_functional_dropout_names_its_module(stacked: bool) -> None:
    network = build(FunctionalDropout(), IMAGE, 3, Norm(), True, seed=0)
    with pytest.raises(
        UserError, match=r"model own: the module body\.2 \(.*Dropping\) draws random numbers from torch's"
    ):
        check_network(network, IMAGE, "model own", stacked=stacked)


def test_a_module_that_cannot_be_mapped_is_named() -> None:
    network = build(ReadingModel(), IMAGE, 3, Norm(), True, seed=0)
    with pytest.raises(
        UserError, match=r"the module body\.1 \(.*Reading\) cannot be trained as a stack of clients .*loop"
    ):
        check_network(network, IMAGE, "model own", stacked=True)
    check_network(network, IMAGE, "model own", stacked=False)


@pytest.mark.parametrize("model", ["encoder", "bn-cnn", "cumulative-bn-cnn", "pretrained", "toy-vit", "mlp"])
def test_a_check_changes_nothing(model: str) -> None:
    image = (2, 4, 6) if model == "toy-vit" else IMAGE
    network = toy_network(model, image=image)
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    states = generator_states()
    check_network(network, image, "model", stacked=True)
    assert generator_states() == states
    assert all(torch.equal(leaf, before[name]) for name, leaf in network.state_dict().items())


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: torch.rand(1), "torch's default generator"),
        (lambda: np.random.rand(), "numpy's global generator"),
        (lambda: random.random(), "Python's random module"),
    ],
)
def test_every_generator_is_watched(draw: Callable[[], Any], name: str) -> None:
    said = f"it draws random numbers from {name}: two runs of one id would differ"
    with pytest.raises(UserError, match=said), without_draws("it"):
        draw()
    with without_draws("it"):
        np.random.default_rng(0).random()


@dataclass(frozen=True)
class Noisy(Method):
    """Adds noise to the aggregate."""

    def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
        return {name: leaf.mean(0) + torch.randn_like(leaf[0]) for name, leaf in changes_n.items()}


@dataclass(frozen=True)
class NoisyClients(Method):
    """Adds noise to the gradient."""

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return {name: leaf + torch.randn_like(leaf) for name, leaf in g.items()}


@dataclass(frozen=True)
class LateNoise(Method):
    """Draws from the second round on."""

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: Any) -> tuple[Tree, Tree]:
        if ctx.round > 0:
            np.random.rand()
        return super().server_step(x, delta, message, state, ctx)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(("method", "hook"), [(Noisy(), "aggregate"), (NoisyClients(), "direction")], ids=str)
def test_a_hook_that_draws_is_named(executor: str, method: Method, hook: str) -> None:
    trainer = toy_trainer(method, executor=executor, pool=2)
    with pytest.raises(UserError, match=rf"test_randomness\.py:\d+: the hook {hook} .* draws? random numbers"):
        trainer.step()


@pytest.mark.parametrize("together", [False, True])
def test_a_later_draw_ends_the_run(together: bool) -> None:
    trainers = [toy_trainer(LateNoise(), executor="stacked", seed=seed) for seed in (0, 1)]

    def step() -> None:
        if together:
            step_together(trainers, [False, False])
        else:
            trainers[0].step()

    step()
    with pytest.raises(UserError, match="fedavg, or a layer of the network, draws random numbers from numpy's global"):
        step()


@dataclass(frozen=True)
class DrawnByNumpy(Model):
    """A model whose ``build`` draws from numpy's and Python's generators, as scipy's distributions do."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        body = nn.Linear(64, 4)
        with torch.no_grad():
            body.weight.copy_(torch.from_numpy(np.random.normal(size=(4, 64))))
            body.bias.fill_(random.random())
        return Halves(nn.Sequential(nn.Flatten(), body), nn.Linear(4, classes))


def test_a_model_that_draws_from_numpy_is_keyed_by_the_seed() -> None:
    before = generator_states()
    first, again, other = (
        torch.cat([leaf.flatten() for leaf in build(DrawnByNumpy(), IMAGE, 3, Norm(), True, seed=seed).parameters()])
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not (first == other).any()
    assert generator_states() == before


@dataclass(frozen=True)
class Unkeyed(Model):
    """A model whose ``build`` makes a generator that no seed keys."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        body = nn.Linear(64, 4)
        with torch.no_grad():
            body.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(4, 64))))
        return Halves(nn.Sequential(nn.Flatten(), body), nn.Linear(4, classes))


def digits(**fields: Any) -> Any:
    experiment = parse_experiment({"rounds": 1, "E": 1, **fields})
    data = load(experiment.dataset)  # type: ignore[attr-defined]
    return make_trainer(experiment, data, device="cpu", executor="loop", pool=1)


def test_a_generator_of_its_own_in_build_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in (("unkeyed", Unkeyed), ("keyed", DrawnByNumpy)):
        monkeypatch.setattr(model, "name", name, raising=False)
        monkeypatch.setitem(MODELS.classes, name, model)
    digits(model="keyed")
    with pytest.raises(UserError, match=r"build returns another body\.1\.weight each time"):
        digits(model="unkeyed")


def test_a_partition_that_draws_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    deal = setup.shards_of

    def drawing(*given: Any) -> Any:
        np.random.rand()
        return deal(*given)

    monkeypatch.setattr(setup, "shards_of", drawing)
    with pytest.raises(UserError, match="partition classes:1 draws random numbers from numpy's global generator"):
        digits(partition="classes:1")
