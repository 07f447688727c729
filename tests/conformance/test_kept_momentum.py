"""Optimizer states that clients keep over rounds, against optimizers of torch that live as long as their clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flbench.config import InvalidExperiment, parse_experiment
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Adam, Sgd
from flbench.methods.base import Method
from flbench.models.batch_norm_layers import FixedBatchNorm
from flbench.registry import METHODS
from tests.conformance.problem import (
    CLIENTS,
    SHARE,
    SIZES,
    UNEQUAL,
    W0,
    SoftmaxRegression,
    batches,
    both_executors,
    images,
)
from tests.conformance.test_golden_optimizers import TorchOptimizer
from tests.recording import rerun
from tests.toys import check_every_way, everything, largest_difference, toy_trainer, train

ROUNDS = 4

#: Ours and torch's.
CASES: dict[str, tuple[Sgd, TorchOptimizer]] = {
    "momentum": (Sgd(0.5, 0.8, 0.1, kept=True), lambda w: torch.optim.SGD(w, 0.5, 0.8, weight_decay=0.1)),
    "nesterov": (Sgd(0.5, 0.8, nesterov=True, kept=True), lambda w: torch.optim.SGD(w, 0.5, 0.8, nesterov=True)),
    "adam": (Adam(0.05, weight_decay=0.1, kept=True), lambda w: torch.optim.Adam(w, 0.05, weight_decay=0.1)),
    "adamw": (
        Adam(0.05, weight_decay=0.1, decoupled=True, kept=True),
        lambda w: torch.optim.AdamW(w, 0.05, weight_decay=0.1),
    ),
}


def trainer_of(executor: str, sgd: Sgd, **kwargs: Any) -> FederatedTrainer:
    settings: dict[str, Any] = {"network": SoftmaxRegression(), "images": images(), "clients": CLIENTS}
    settings |= {"steps": UNEQUAL, "batch_size": 2, "participation": 0.67}
    return toy_trainer(Method(), executor=executor, sgd=sgd, **{**settings, **kwargs})


@both_executors
@pytest.mark.parametrize("case", CASES)
def test_golden_numbers(case: str, executor: str) -> None:
    """Two of three clients take part in a round, with unequal steps: their optimizers have seen different numbers."""
    ours, make = CASES[case]
    trainer = trainer_of(executor, ours)
    x = torch.from_numpy(W0)
    weights = [x.clone().requires_grad_() for _ in SIZES]
    optimizers = [make([w]) for w in weights]
    for round in range(ROUNDS):
        cohort = [int(client) for client in trainer.run.cohort(round)]
        for client in cohort:
            weights[client].data.copy_(x)
            for pixels, labels in batches(client, round, UNEQUAL[client]):
                optimizers[client].zero_grad()
                F.cross_entropy(torch.from_numpy(pixels) @ weights[client].T, torch.from_numpy(labels)).backward()
                optimizers[client].step()
        share = SHARE[cohort] / SHARE[cohort].sum()
        x = torch.stack([part * weights[k].detach() for part, k in zip(share, cohort, strict=True)]).sum(0)
    train(ROUNDS, trainer)
    np.testing.assert_allclose(trainer.x["head.weight"].numpy(), x.numpy(), rtol=0, atol=1e-12)
    forgetful = trainer_of(executor, type(ours)(**{**vars(ours), "kept": False}))
    train(ROUNDS, forgetful)
    assert largest_difference(forgetful.x, trainer.x) > 1e-3 and not forgetful.velocity
    assert forgetful.bytes_up == trainer.bytes_up and forgetful.bytes_down == trainer.bytes_down


@both_executors
def test_fixbn_with_kept_momentum(executor: str) -> None:
    """Zhong et al. 2023: batch statistics in two rounds, then fixed ones; the momentum of a client is never reset."""
    network, fixed_from = SoftmaxRegression(batch_norm=True), 2
    network.norm = FixedBatchNorm(2, 1e-5, fixed_from).double()
    trainer = trainer_of(executor, Sgd(0.5, 0.8, kept=True), network=network, participation=1.0)
    server = [torch.ones(2), torch.zeros(2), torch.from_numpy(W0), torch.zeros(2), torch.ones(2)]
    server = [leaf.double() for leaf in server]  # scale, shift, weights, running mean and variance
    clients = [[leaf.clone().requires_grad_(at < 3) for at, leaf in enumerate(server)] for _ in SIZES]
    optimizers = [torch.optim.SGD(own[:3], 0.5, 0.8) for own in clients]
    for round in range(ROUNDS):
        for client, (own, optimizer) in enumerate(zip(clients, optimizers, strict=True)):
            for leaf, sent in zip(own, server, strict=True):
                leaf.data.copy_(sent)
            scale, shift, weight, mean, var = own
            for pixels, labels in batches(client, round, UNEQUAL[client]):
                optimizer.zero_grad()
                inputs = torch.from_numpy(pixels)
                features = F.batch_norm(inputs, mean, var, scale, shift, training=round < fixed_from)
                F.cross_entropy(features @ weight.T, torch.from_numpy(labels)).backward()
                optimizer.step()
        each = zip(*clients, strict=True)
        server = [sum(part * leaf.detach() for part, leaf in zip(SHARE, leaves, strict=True)) for leaves in each]
    train(ROUNDS, trainer)
    params, buffers = trainer.model(0)
    names = ("norm.weight", "norm.bias", "head.weight", "norm.running_mean", "norm.running_var")
    for name, expected in zip(names, server, strict=True):
        np.testing.assert_allclose({**params, **buffers}[name].numpy(), expected.numpy(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("sgd", [CASES["momentum"][0], CASES["adam"][0]], ids=["momentum", "adam"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_every_way_to_train_agrees(sgd: Sgd, method: str) -> None:
    def make(**kwargs: Any) -> FederatedTrainer:
        return toy_trainer(METHODS.parse(method), sgd=sgd, steps=[3, 1, 4], participation=0.67, **kwargs)

    loop = check_every_way(make)
    recorded = make(executor="stacked", record=rerun)
    train(2, recorded)
    assert largest_difference(everything(loop), everything(recorded)) < 1e-10


def test_fine_tuning_starts_with_a_new_state() -> None:
    kept, forgetful = (toy_trainer(Method(), sgd=Adam(0.01, kept=kept), finetune=2) for kept in (True, False))
    train(1, kept, forgetful)
    assert kept.evaluate()["acc_finetuned"] == forgetful.evaluate()["acc_finetuned"]


def test_fields() -> None:
    plain, kept = (parse_experiment({"momentum": 0.9, "keep_momentum": keep}) for keep in (False, True))
    assert plain.run_id == parse_experiment({"momentum": 0.9}).run_id != kept.run_id
    for given, match in (
        ({}, "needs momentum above 0, or optimizer: adam or adamw"),
        ({"momentum": 0.9, "method": "fednova", "local_epochs": 1}, "fednova weighs .* not with keep_momentum"),
        ({"momentum": 0.9, "method": "ditto"}, "the state of one set of weights, and ditto trains two"),
    ):
        with pytest.raises(InvalidExperiment, match=match):
            parse_experiment({"keep_momentum": True, **given})
