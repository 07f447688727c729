"""Local optimizers, clipping and schedules against torch.optim in a plain loop over clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from flbench.config import InvalidExperiment, parse_experiment
from flbench.data.datasets import load
from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Adam, Sgd, clipped, unitwise_clipped
from flbench.engine.setup import make_trainer
from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.conformance.problem import (
    CLIENTS,
    H0,
    SHARE,
    V0,
    W0,
    Array,
    SoftmaxRegression,
    TwoLayers,
    batches,
    both_executors,
    images,
    mean,
    softmax_error,
)
from tests.recording import rerun
from tests.toys import everything, largest_difference, same_bits, toy_trainer, train, train_together

ROUNDS, STEPS = 3, 3
TorchOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]

#: Ours, torch's, the largest norm, and the factor of the learning rate in each round.
CASES: dict[str, tuple[Sgd, TorchOptimizer, float | None, list[float]]] = {
    "nesterov": (
        Sgd(0.5, 0.8, 0.1, nesterov=True),
        lambda w: torch.optim.SGD(w, 0.5, 0.8, weight_decay=0.1, nesterov=True),
        None,
        [1, 1, 1],
    ),
    "clipping before weight decay and momentum": (
        Sgd(0.5, 0.8, 0.1, clip_norm=0.2),
        lambda w: torch.optim.SGD(w, 0.5, 0.8, weight_decay=0.1),
        0.2,
        [1, 1, 1],
    ),
    "adam": (Adam(0.05, weight_decay=0.1), lambda w: torch.optim.Adam(w, 0.05, weight_decay=0.1), None, [1, 1, 1]),
    "adamw": (
        Adam(0.05, weight_decay=0.1, decoupled=True, clip_norm=0.2),
        lambda w: torch.optim.AdamW(w, 0.05, weight_decay=0.1),
        0.2,
        [1, 1, 1],
    ),
    "decay": (Sgd(0.5, 0.8, schedule="decay:0.7"), lambda w: torch.optim.SGD(w, 0.5, 0.8), None, [1, 0.7, 0.49]),
    "cosine": (
        Sgd(0.5, schedule="cosine:4"),
        lambda w: torch.optim.SGD(w, 0.5),
        None,
        [1, (1 + math.sqrt(0.5)) / 2, 0.5],
    ),
}


def golden(make: TorchOptimizer, clip_norm: float | None, factors: list[float]) -> np.ndarray[Any, Any]:
    """FedAvg whose clients start every round with a new optimizer of torch."""
    x = torch.from_numpy(W0)
    for round, factor in enumerate(factors):
        ends = []
        for client in range(len(CLIENTS.train)):
            w = x.clone().requires_grad_()
            optimizer = make([w])
            optimizer.param_groups[0]["lr"] *= factor
            for pixels, labels in batches(client, round, STEPS):
                optimizer.zero_grad()
                F.cross_entropy(torch.from_numpy(pixels) @ w.T, torch.from_numpy(labels)).backward()
                if clip_norm is not None:
                    clip_grad_norm_([w], clip_norm)
                optimizer.step()
            ends.append(w.detach())
        x = torch.stack([share * end for share, end in zip(SHARE, ends, strict=True)]).sum(0)
    return x.numpy()


@both_executors
@pytest.mark.parametrize("case", CASES)
def test_golden_numbers(case: str, executor: str) -> None:
    ours, theirs, clip_norm, factors = CASES[case]
    settings: dict[str, Any] = {"network": SoftmaxRegression(), "images": images(), "clients": CLIENTS}
    trainer = toy_trainer(Method(), executor=executor, sgd=ours, steps=STEPS, batch_size=2, **settings)
    train(ROUNDS, trainer)
    expected = golden(theirs, clip_norm, factors)
    np.testing.assert_allclose(trainer.x["head.weight"].numpy(), expected, rtol=0, atol=1e-12)
    if clip_norm is not None:
        assert np.abs(expected - golden(theirs, None, factors)).max() > 1e-3, "the limit is reached"


def agc_by_rows(gradient: Array, weights: Array, agc: float) -> Array:
    """Adaptive gradient clipping of a matrix, row by row."""
    rows = []
    for g, w in zip(gradient, weights, strict=True):
        largest, length = agc * max(math.sqrt(sum(w**2)), 1e-3), math.sqrt(sum(g**2))
        rows.append(g * largest / length if length > largest else g)
    return np.array(rows)


def golden_agc(agc: float, momentum: float, decay: float) -> tuple[Array, Array]:
    """FedAvg on logits H V p, both gradients by hand; only V is clipped, and before weight decay."""
    server = V0, H0
    for round in range(ROUNDS):
        ends = []
        for client in range(len(CLIENTS.train)):
            v, h = server
            moved_v, moved_h = np.zeros_like(v), np.zeros_like(h)
            for pixels, labels in batches(client, round, STEPS):
                error = softmax_error(pixels @ v.T @ h.T, labels)
                of_v, of_h = (error @ h).T @ pixels, error.T @ (pixels @ v.T)
                moved_v = momentum * moved_v + agc_by_rows(of_v, v, agc) + decay * v
                moved_h = momentum * moved_h + of_h + decay * h
                v, h = v - 0.5 * moved_v, h - 0.5 * moved_h
            ends.append((v, h))
        server = mean(SHARE, [end[0] for end in ends]), mean(SHARE, [end[1] for end in ends])
    return server


@both_executors
def test_adaptive_gradient_clipping(executor: str) -> None:
    settings: dict[str, Any] = {"network": TwoLayers(), "images": images(), "clients": CLIENTS, "batch_size": 2}
    sgd = Sgd(0.5, 0.8, 0.1, agc=0.1)
    trainer = toy_trainer(Method(), executor=executor, sgd=sgd, steps=STEPS, **settings)
    train(ROUNDS, trainer)
    v, h = golden_agc(0.1, 0.8, 0.1)
    np.testing.assert_allclose(trainer.x["hidden.weight"].numpy(), v, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trainer.x["head.weight"].numpy(), h, rtol=0, atol=1e-12)
    assert np.abs(v - golden_agc(1e9, 0.8, 0.1)[0]).max() > 1e-3, "the limit is reached"


def test_units_of_adaptive_gradient_clipping() -> None:
    """A unit is a slice of the first axis, or a vector; zero weights count as 1e-3, and the head is not clipped."""
    w = {
        "conv.weight": torch.tensor([[[[3.0, 4.0]]], [[[0.3, 0.4]]]]),
        "conv.bias": torch.tensor([0.0, 0.0]),
        "head.weight": torch.tensor([[1.0, 0.0]]),
        "head.bias": torch.tensor([0.0]),
    }
    g = {name: torch.full_like(leaf, 6.0) for name, leaf in w.items()} | {"conv.bias": torch.tensor([3.0, 4.0])}
    out = unitwise_clipped(g, w, 0.5, "head.weight")
    torch.testing.assert_close(out["conv.weight"].flatten(1).norm(dim=1), torch.tensor([2.5, 0.25]))
    torch.testing.assert_close(out["conv.bias"], torch.tensor([0.0003, 0.0004]))
    assert out["head.weight"] is g["head.weight"] and out["head.bias"] is g["head.bias"]
    everywhere = unitwise_clipped(g, w, 0.5, "")
    torch.testing.assert_close(everywhere["head.weight"].norm(), torch.tensor(0.5))
    assert torch.equal(unitwise_clipped(w, w, 1.0, "")["conv.weight"], w["conv.weight"]), "equal to the limit: kept"


def test_centralized_training_does_not_clip_the_head() -> None:
    experiment = parse_experiment({"kind": "centralized", "agc": 1e-9, "E": 1, "lr": 1.0})
    trainer, _ = make_trainer(experiment, load(experiment.dataset), device="cpu", executor="loop", pool=1)  # type: ignore[arg-type]
    before = {name: leaf.clone() for name, leaf in trainer.x.items()}
    trainer.step()
    moved = {name: float((leaf - before[name]).abs().max()) for name, leaf in trainer.x.items()}
    assert moved.pop("head.weight") > 1e-3
    assert max(moved.values()) < 1e-6


OPTIMIZERS: dict[str, Sgd] = {
    "nesterov": Sgd(0.1, 0.5, 0.01, nesterov=True),
    "clipped": Sgd(0.1, 0.5, 0.01, clip_norm=0.5),
    "clipped by units": Sgd(0.1, 0.5, 0.01, agc=0.1),
    "adam": Adam(0.01, weight_decay=0.01),
    "adamw": Adam(0.01, weight_decay=0.01, decoupled=True, schedule="decay:0.5"),
    "cosine": Sgd(0.1, 0.5, schedule="cosine:3"),
}


def toy(sgd: Sgd, method: str = "scaffold", **settings: Any) -> FederatedTrainer:
    return toy_trainer(METHODS.parse(method), sgd=sgd, **{"steps": [3, 1, 4], **settings})


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_way_to_train_agrees(name: str, method: str) -> None:
    sgd = OPTIMIZERS[name]
    loop, stacked, recorded, chunks = (
        toy(sgd, method, **way)
        for way in (
            {},
            {"executor": "stacked"},
            {"executor": "stacked", "record": rerun},
            {"executor": "stacked", "chunk": 2},
        )
    )
    for trainer in (loop, stacked, recorded, chunks):
        train(3, trainer)
    for other in (stacked, recorded, chunks):
        assert largest_difference(everything(loop), everything(other)) < 1e-10
    assert largest_difference(everything(loop), everything(_trained(Sgd(sgd.lr), method))) > 1e-6


def _trained(sgd: Sgd, method: str) -> FederatedTrainer:
    trainer = toy(sgd, method)
    train(3, trainer)
    return trainer


@pytest.mark.parametrize("record", [None, rerun], ids=["by operation", "recorded"])
def test_runs_of_one_stack_differ_in_rate_and_schedule(record: Any) -> None:
    ours = [Sgd(0.1, 0.5), Sgd(0.05, 0.5, schedule="decay:0.5"), Sgd(0.1, 0.5, schedule="cosine:3")]
    together = [toy(sgd, executor="stacked", seed=seed, record=record) for seed, sgd in enumerate(ours)]
    alone = [toy(sgd, seed=seed) for seed, sgd in enumerate(ours)]
    train_together(3, together)
    for one, other in zip(together, alone, strict=True):
        train(3, other)
        assert largest_difference(everything(one), everything(other)) < 1e-10


def test_off_is_sgd_to_the_bit() -> None:
    plain = _trained(Sgd(0.1, 0.5), "scaffold")
    assert same_bits(plain, _trained(Sgd(0.1, 0.5, clip_norm=1e9), "scaffold"))
    assert same_bits(plain, _trained(Sgd(0.1, 0.5, agc=1e9), "scaffold"))


@pytest.mark.parametrize("limit", [0.3, 30.0])
def test_the_norm_is_over_all_parameters(limit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    leaves = {name: torch.randn(3, 2, generator=generator, dtype=torch.float64) for name in "abc"}
    theirs = [leaf.clone().requires_grad_() for leaf in leaves.values()]
    for leaf, grad in zip(theirs, leaves.values(), strict=True):
        leaf.grad = grad.clone()
    clip_grad_norm_(theirs, limit)
    expected = {name: leaf.grad for name, leaf in zip(leaves, theirs, strict=True) if leaf.grad is not None}
    assert largest_difference(clipped(leaves, limit), expected) < 1e-15


def test_methods_learn_the_rate_of_the_round() -> None:
    """Option II of SCAFFOLD divides by the rate: in one step without corrections a control is the gradient."""
    trainer = toy(Sgd(0.1, schedule="decay:0.5"), steps=1)
    train(2, trainer)
    before = {name: leaf.clone() for name, leaf in trainer.x.items()}
    states = {name: leaf.clone() for name, leaf in trainer.states.items()}
    report = trainer.step(keep_clients=True)
    assert report.client_params is not None
    for name, leaf in report.client_params.items():
        moved = (before[name] - leaf[0]) / (0.1 * 0.25)
        server = states[name].mean(0)
        torch.testing.assert_close(trainer.states[name][0], states[name][0] - server + moved, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"lr_schedule": "linear"}, "expected constant, decay:FACTOR"),
        ({"lr_schedule": "decay:1.5"}, "got 'decay:1.5'"),
        ({"lr_schedule": {"cosine": 0}}, "expected constant"),
        ({"lr_schedule": "cosine:100", "rounds": 200}, "cosine:100 ends before the run's 200 rounds"),
        ({"nesterov": True}, "nesterov: needs momentum above 0"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum: adam has its own momentum"),
        ({"optimizer": "rmsprop"}, "'adam'"),
        ({"optimizer": "adam", "method": "fednova"}, "method: fednova weighs the changes by the steps of SGD"),
        ({"nesterov": True, "momentum": 0.9, "method": "fednova"}, "not with nesterov"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"agc": 0}, "agc"),
        ({"agc": 0.1, "clip_norm": 1.0}, "agc: give either clip_norm or agc"),
    ],
)
def test_what_does_not_fit_is_refused(raw: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidExperiment) as error:
        parse_experiment(raw)
    assert problem in str(error.value)


def test_one_schedule_has_one_id() -> None:
    plain = parse_experiment({})
    assert parse_experiment({"lr_schedule": "decay:1"}).run_id == plain.run_id
    ids = {parse_experiment({"lr_schedule": form}).run_id for form in ("decay:0.90", "decay:0.9", {"decay": 0.9})}
    assert len(ids) == 1 and plain.run_id not in ids
    longer, shorter = (parse_experiment({"lr_schedule": "cosine:200", "rounds": rounds}) for rounds in (200, 100))
    assert longer.run_id == shorter.run_id, "a longer request extends the run"
    assert parse_experiment(longer.to_json()).run_id == longer.run_id
    changed: list[dict[str, Any]] = [{"optimizer": "adam"}, {"clip_norm": 1.0}, {"optimizer": "adamw"}, {"agc": 1.0}]
    changed.append({"nesterov": True, "momentum": 0.9})
    assert len({plain.run_id, *(parse_experiment(raw).run_id for raw in changed)}) == 6
