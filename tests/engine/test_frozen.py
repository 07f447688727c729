"""Parameters with ``requires_grad=False``, and who draws initial weights.

The reference is plain PyTorch with an optimizer of the trained parameters alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.data.batches import federated_rows
from flbench.engine.centralized import CentralizedTrainer
from flbench.engine.executors import LoopExecutor, StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Adam, Sgd
from flbench.engine.run import TrainingSetup
from flbench.engine.stack_size import client_bytes
from flbench.errors import UserError
from flbench.methods.base import Batch, Context, Method, ServerContext, Tree
from flbench.models.base import Model
from flbench.models.flops import sample_flops
from flbench.models.frozen import initial_trees
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.models.sites import Shape
from flbench.registry import METHODS, NORMS
from tests.own_models import FrozenHead, Pretrained
from tests.samples import fast
from tests.toys import (
    check_every_way,
    everything,
    largest_difference,
    toy_clients,
    toy_images,
    toy_network,
    toy_trainer,
    train,
)

FROZEN = "body.1."
TRAINED = ["body.2.0.weight", "body.2.0.bias", "head.weight", "head.bias"]
SGD = Sgd(0.1, momentum=0.5, weight_decay=0.01)


def trainer(executor: str, method: Method | None = None, **settings: Any) -> FederatedTrainer:
    return toy_trainer(method or Method(), **{"executor": executor, "model": "pretrained", "sgd": SGD, **settings})


def frozen_parts(of: FederatedTrainer, client: int = 0) -> Tree:
    params, buffers = of.model(client)
    return {name: leaf for name, leaf in {**params, **buffers}.items() if name.startswith(FROZEN)}


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedbn"))
def test_every_way_to_train_agrees_and_no_method_moves_them(method: str) -> None:
    settings: dict[str, Any] = {"method": METHODS.parse(method), "steps": [3, 1, 4], "sgd": Sgd(0.01, momentum=0.5)}
    check_every_way(partial(trainer, **settings, model="frozen-cnn"), fused=False)
    start = trainer("loop", **settings)
    before, first = frozen_parts(start), start.model(0)[0]
    assert {f"{FROZEN}0.weight", f"{FROZEN}1.running_mean", f"{FROZEN}2.num_batches_tracked"} < before.keys()
    assert (before[f"{FROZEN}0.weight"] == 0.5).all()
    assert (before[f"{FROZEN}1.running_mean"] == 0.25).all()
    assert list(first) == TRAINED
    one = check_every_way(partial(trainer, **settings))
    for client in range(3):
        after = frozen_parts(one, client)
        assert all(torch.equal(after[name], leaf) for name, leaf in before.items())
    assert any(not torch.equal(first[name], one.model(k)[0][name]) for k in range(3) for name in TRAINED)
    drawn = [frozen_parts(trainer("loop", weights=seed))[f"{FROZEN}3.weight"] for seed in (0, 1)]
    assert not torch.equal(*drawn), "runs in one stack have other frozen weights"


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    "sgd",
    [SGD, Sgd(0.1, nesterov=True, momentum=0.9, clip_norm=0.1), Adam(0.01, weight_decay=0.1, decoupled=True)],
    ids=str,
)
def test_one_client_is_plain_pytorch(executor: str, sgd: Sgd) -> None:
    one = trainer(executor, sgd=sgd, clients=toy_clients((30,)), steps=3)
    network = toy_network("pretrained")
    images = toy_images()
    parameters = [leaf for leaf in network.parameters() if leaf.requires_grad]
    rows = federated_rows(np.arange(30), seed=0, client=0, round=0, steps=3, batch_size=5)
    common: dict[str, Any] = {"lr": sgd.lr, "weight_decay": sgd.weight_decay}
    optimizer: torch.optim.Optimizer
    if isinstance(sgd, Adam):
        optimizer = torch.optim.AdamW(parameters, **common)
    else:
        optimizer = torch.optim.SGD(parameters, **common, momentum=sgd.momentum, nesterov=sgd.nesterov)
    for batch in rows:
        logits = network(images.prepare(images.train_MCHW[batch]))[1]
        optimizer.zero_grad()
        F.cross_entropy(logits, images.train_labels_M[batch]).backward()
        if sgd.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, sgd.clip_norm)
        optimizer.step()
    train(1, one)
    params, buffers = one.model(0)
    state = network.state_dict()
    assert state.keys() == {**params, **buffers}.keys()
    for name, leaf in {**params, **buffers}.items():
        torch.testing.assert_close(leaf, state[name], rtol=0, atol=1e-12)


def test_only_what_trains_is_sent() -> None:
    one = trainer("stacked")
    train(1, one)
    trained = sum(leaf.numel() * 8 for leaf in one.x.values())
    assert trained == 8 * (6 * 8 + 8 + 8 * 3 + 3)
    assert (one.bytes_up, one.bytes_down) == (3 * trained, 3 * trained)


def test_every_hook_sees_only_what_trains() -> None:
    seen: set[str] = set()

    def note(*trees: Tree) -> None:
        for tree in trees:
            seen.update(tree)

    @dataclass(frozen=True)
    class Curious(Method):
        def init_server(self, x: Tree) -> Tree:
            note(x)
            return {}

        def init_client(self, x: Tree, buffers: Tree) -> Tree:
            note(x, buffers)
            return {}

        def teachers(self, ctx: Context) -> dict[str, Tree]:
            note(ctx.x, ctx.buffers)
            return {"server": ctx.x}

        def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
            note(w, ctx.x, ctx.buffers)
            return (batch.teachers["server"].logits_BY - batch.logits_BY).square().mean()

        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            note(w, g, ctx.buffers)
            return g

        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            note(w, ctx.x, ctx.buffers)
            return {}, {}

        def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
            note(changes_n)
            return super().aggregate(changes_n, weights_n, ctx)

        def server_step(
            self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext
        ) -> tuple[Tree, Tree]:
            note(x, delta)
            return super().server_step(x, delta, message, state, ctx)

    pair = [trainer(executor, Curious()) for executor in ("loop", "stacked")]
    train(2, *pair)
    assert seen == set(TRAINED)
    assert largest_difference(*map(everything, pair)) < 1e-10


def test_a_thawed_model_trains_all_of_it() -> None:
    one = trainer("stacked", model="thawed")
    before = frozen_parts(one)
    train(1, one)
    after = frozen_parts(one)
    moved = {name for name, leaf in before.items() if not torch.equal(after[name], leaf)}
    assert moved == before.keys()


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_centralized_training(executor: str) -> None:
    network = toy_network("pretrained")
    params, buffers = initial_trees(network)
    runner = LoopExecutor([network], None) if executor == "loop" else StackedExecutor(network, None)
    setup = TrainingSetup(SGD, None, 5, toy_images(), runner, params, buffers, seed=0)
    one = CentralizedTrainer(setup, train_rows=np.arange(60), val_rows=np.arange(0), steps=4, head="head.weight")
    train(3, one)
    assert list(one.x) == list(one.velocity) == TRAINED
    assert one.buffers.keys() == buffers.keys()
    assert all(torch.equal(one.buffers[name], leaf) for name, leaf in buffers.items())
    assert not any(torch.equal(one.x[name], leaf) for name, leaf in params.items())
    assert "acc" in one.evaluate()


def test_evaluation_mode_is_kept_in_frozen_parts_only() -> None:
    network = copy.deepcopy(toy_network("pretrained", norm="bn")).train()
    modes = {name: module.training for name, module in network.named_modules() if list(module.buffers(recurse=False))}
    assert modes == {"body.1.1": False, "body.1.2": False, "body.2.1": True}


def test_operations_and_memory_are_counted() -> None:
    image = (1, 8, 8)
    pair = [toy_network(model, image=image) for model in ("pretrained", "thawed")]
    frozen, thawed = (sample_flops(network, image, backward=True) for network in pair)
    assert sample_flops(pair[0], image, backward=False) < frozen < thawed
    frozen, thawed = (client_bytes(network, image, 5, METHODS.parse("moon")) for network in pair)
    assert frozen < thawed


def test_weights_that_build_makes_are_the_initial_ones() -> None:
    norm, image = Norm(), (1, 8, 8)

    def weights(seed: int) -> dict[str, Tensor]:
        return build(Pretrained(), image, 3, norm, True, seed=seed).state_dict()

    state = torch.get_rng_state()
    first, again, other = weights(0), weights(0), weights(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], leaf) for name, leaf in again.items())
    assert torch.equal(first["body.1.0.weight"], other["body.1.0.weight"])
    drawn = {"body.1.0.bias", "body.1.3.weight", "body.1.3.bias", *TRAINED}
    assert {name for name, leaf in first.items() if not torch.equal(leaf, other[name])} == drawn


@pytest.fixture
def uninitialized_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninitialized_memory_is_nan")
def test_layers_of_norms_start_right_in_a_model_that_builds_itself() -> None:
    assert torch.empty(1).isnan()
    for norm in (name for name, norm in NORMS.classes.items() if not norm.lock_step):
        tensors = {**toy_network("pretrained", norm=norm).state_dict(), **toy_network("mlp", norm=norm).state_dict()}
        assert not any(leaf.isnan().any() for leaf in tensors.values()), norm


def test_what_cannot_be_trained_is_refused() -> None:
    @dataclass(frozen=True)
    class Fixed(Model):
        def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
            network = Pretrained().build(image, classes, norm, bias)
            return network.requires_grad_(False)

    Fixed.name = "fixed"
    with pytest.raises(UserError, match="model fixed: no parameter has requires_grad=True"):
        build(Fixed(), (1, 8, 8), 3, Norm(), True, seed=0)
    with pytest.raises(UserError, match=r"fedaws trains the rows of the head, and the model's head\.weight is frozen"):
        trainer("loop", METHODS.parse("fedaws"), model="frozen-head")
    assert isinstance(toy_network("frozen-head"), nn.Module) and FrozenHead().initialized_by() == "build"
