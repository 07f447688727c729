"""The field ``train``: which parameters train; the rest is constant, neither sent nor averaged."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.config import InvalidExperiment, parse_experiment
from flbench.data.batches import federated_rows
from flbench.engine.optimizers import Sgd
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.models.frozen import initial_trees
from flbench.models.trained_parts import train_only
from flbench.registry import METHODS
from tests.samples import fast
from tests.toys import check_every_way, same_bits, toy_clients, toy_images, toy_network, toy_trainer, train

#: Model, norm, ``train`` and what it leaves to train, in order.
PARTS: dict[str, tuple[str, str, str, list[str]]] = {
    "head": ("mlp", "none", "head", ["head.weight"]),
    "norm": ("mlp", "ln", "norm", ["trunk.after1.weight", "trunk.after1.bias", "trunk.after2.weight",
                                   "trunk.after2.bias"]),
    "both": ("bn-cnn", "none", "head+norm", ["body.2.weight", "body.2.bias", "body.7.weight", "body.7.bias",
                                             "head.weight", "head.bias"]),
    "pattern": ("toy-cnn", "gn", "trunk.conv?.*", ["trunk.conv1.weight", "trunk.conv2.weight"]),
    "of the model": ("pretrained", "none", "*.weight", ["body.2.0.weight", "head.weight"]),
    "lora": ("mlp", "none", "head+lora:2", ["trunk.dense1.lora_A", "trunk.dense1.lora_B", "trunk.dense2.lora_A",
                                            "trunk.dense2.lora_B", "head.weight"]),
}  # fmt: skip

#: Networks with every kind of layer that an adapter can have: flbench's own, standardized, torch's, and attention.
ADAPTED = {
    "mlp": ("mlp", "ln"), "cnn": ("toy-cnn", "ws-scaled"), "resnet": ("toy-resnet18", "gn"), "vit": ("toy-vit", "fn"),
    "plain": ("bn-cnn", "none"), "attention": ("encoder", "none"), "frozen": ("frozen-cnn", "none"),
}  # fmt: skip


@pytest.mark.parametrize("model, norm, parts, names", PARTS.values(), ids=PARTS)
def test_only_these_parts_train_and_are_sent(model: str, norm: str, parts: str, names: list[str]) -> None:
    make = partial(toy_trainer, Method(), model=model, norm=norm, trained=parts, steps=[3, 1, 2], sgd=Sgd(0.1, 0.5))
    start, one = make(), check_every_way(make, fused=False)
    assert list(start.x) == names
    assert all(not torch.equal(leaf, one.x[name]) for name, leaf in start.x.items())
    constant = start.buffers.keys() & start.run.frozen
    assert all(torch.equal(start.buffers[name], one.buffers[name]) for name in constant)
    sent = {name: leaf for name, leaf in {**one.x, **one.buffers}.items() if name not in constant}
    assert one.bytes_up == one.bytes_down == 2 * 3 * sum(leaf.numel() * leaf.element_size() for leaf in sent.values())


@pytest.mark.parametrize("model, norm", ADAPTED.values(), ids=ADAPTED)
def test_adapters_start_as_nothing_and_train_alike_in_loop_and_stack(model: str, norm: str) -> None:
    images = toy_images().prepare(toy_images().train_MCHW[:6])
    before, after = (toy_network(model, norm, train=parts).eval() for parts in ("all", "lora:2"))
    assert all(map(torch.equal, before(images), after(images)))
    assert {name.rpartition(".")[2] for name in initial_trees(after)[0]} == {"lora_A", "lora_B"}
    check_every_way(partial(toy_trainer, Method(), model=model, norm=norm, trained="lora:2"), fused=model == "mlp")


@pytest.mark.parametrize("method", fast(METHODS.classes, "scaffold", "fedbn", "fedyogi"))
def test_every_method_trains_adapters(method: str) -> None:
    own = METHODS.parse(method)
    make = partial(toy_trainer, own, norm="bn", trained="head+lora:1", steps=[2, 1, 2], sgd=Sgd(0.01, 0.5))
    check_every_way(make, fused=False)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_an_adapted_cnn_is_plain_pytorch(executor: str) -> None:
    """The reference has W and computes W + B A itself, for a convolution and a dense layer of another shape."""
    sgd = Sgd(0.1, momentum=0.5, weight_decay=0.01)
    settings: dict[str, Any] = {"clients": toy_clients((30,)), "steps": 3, "sgd": sgd, "model": "frozen-cnn"}
    one = toy_trainer(Method(), executor=executor, trained="lora:3+head", **settings)
    fixed = {name: leaf.clone() for name, leaf in one.buffers.items()}
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in one.x.items()}
    assert fixed.keys() == {"body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"}
    assert [leaf.shape for leaf in leaves.values()] == [(3, 36), (3, 3), (3, 12), (3,)]
    images, velocity = toy_images(), {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for rows in federated_rows(np.arange(30), seed=0, client=0, round=0, steps=3, batch_size=5):
        x = F.relu(
            F.conv2d(images.prepare(images.train_MCHW[rows]), fixed["body.0.weight"], fixed["body.0.bias"], 1, 1)
        )
        change = (leaves["body.2.lora_B"] @ leaves["body.2.lora_A"]).reshape(3, 4, 3, 3)
        x = F.relu(F.conv2d(x, fixed["body.2.weight"] + change, fixed["body.2.bias"]))
        logits = F.linear(F.adaptive_avg_pool2d(x, 2).flatten(1), leaves["head.weight"], leaves["head.bias"])
        loss: Tensor = F.cross_entropy(logits, images.train_labels_M[rows])
        for (name, leaf), g in zip(leaves.items(), torch.autograd.grad(loss, list(leaves.values())), strict=True):
            velocity[name] = 0.5 * velocity[name] + g + 0.01 * leaf.detach()
            leaf.data -= 0.1 * velocity[name]
    train(1, one)
    for name, leaf in leaves.items():
        torch.testing.assert_close(one.x[name], leaf.detach(), rtol=0, atol=1e-12)


def test_adapters_follow_the_seed_and_the_rank_is_at_most_the_weights() -> None:
    first, again, other = (initial_trees(toy_network(train="lora:50", weights=seed))[0] for seed in (3, 3, 4))
    name = "trunk.dense1.lora_A"
    assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])
    assert first[name].shape == (8, 64) and first["head.lora_B"].shape == (3, 3)
    assert 0.9 / 8 < first[name].abs().max() <= 1 / 8 and not first["head.lora_B"].any()


def test_all_is_what_was_before() -> None:
    assert "train" not in parse_experiment({"train": "all"}).identity()
    assert parse_experiment({"train": "norm+head", "norm": "ln"}).identity()["train"] == "head+norm"
    pair = [toy_trainer(Method(), trained=parts) for parts in ("all", "*")]
    train(1, *pair)
    assert same_bits(*pair)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"train": "heads"}, "train: expected all, head, norm, lora:RANK or a pattern.* did you mean 'head'?"),
        ({"train": "lora"}, "expected lora:RANK with a whole RANK from 1, such as lora:4; got 'lora'"),
        ({"train": "lora:0"}, "whole RANK from 1"),
        ({"train": "all+head"}, "all is every parameter"),
        ({"train": "lora:2+lora:3"}, "give one rank of lora"),
        ({"train": 3}, "got 3"),
        ({"train": "trunk.dens1.*"}, r"matches no parameter that trains; did you mean 'trunk\.dense1\.weight'?"),
        ({"train": "norm"}, "norm: the network has no normalization with parameters that train"),
        ({"train": "head", "head": "frozen"}, "head: the network has no module named head with parameters"),
        ({"train": "lora:2", "method": "fedaws"}, "fedaws has a rule for the rows of the head.* use head[+]lora:2"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_trained_is_one_error_before_the_run(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment(fields)


def test_a_model_without_layers_for_adapters_is_refused() -> None:
    with pytest.raises(UserError, match="lora:2 leaves nothing to train"):
        train_only(nn.Sequential(nn.BatchNorm1d(3)), "lora:2", 0)
