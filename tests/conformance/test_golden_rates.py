"""Phases and rates of single parameters, against torch.optim on parameters whose gradient is None where they rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from flbench.engine.optimizers import Adam, Sgd
from flbench.methods.base import Context, Method, Tree
from tests.conformance.problem import CLIENTS, H0, SHARE, V0, TwoLayers, batches, both_executors, images
from tests.toys import toy_trainer, train

ROUNDS, STEPS = 2, 4
#: Factors of the rates of the hidden layer and the head in each step.
FACTORS = [(0, 1), (0.3, 0), (0.3, 2), (0, 0.5)]


@dataclass(frozen=True)
class Phases(Method):
    def rates(self, name: str, ctx: Context) -> float:
        return FACTORS[ctx.step][name.startswith("head")]


@dataclass(frozen=True)
class TensorPhases(Phases):
    """The same numbers, of which every client has its own."""

    def rates(self, name: str, ctx: Context) -> Any:
        return super().rates(name, ctx) * torch.ones_like(ctx.relative_size)


@dataclass(frozen=True)
class Elementwise(TensorPhases):
    elementwise: ClassVar[bool] = True


#: Ours, torch's given groups of parameters, and the largest norm.
OPTIMIZERS: dict[str, tuple[Sgd, Callable[[Any], torch.optim.Optimizer], float | None]] = {
    "sgd": (Sgd(0.5), lambda w: torch.optim.SGD(w, 0.5), None),
    "momentum": (
        Sgd(0.5, 0.8, 0.1, nesterov=True, clip_norm=0.2),
        lambda w: torch.optim.SGD(w, 0.5, 0.8, weight_decay=0.1, nesterov=True),
        0.2,
    ),
    "adamw": (
        Adam(0.05, weight_decay=0.1, decoupled=True, clip_norm=0.2),
        lambda w: torch.optim.AdamW(w, 0.05, weight_decay=0.1),
        0.2,
    ),
}


def golden(make: Callable[[Any], torch.optim.Optimizer], lr: float, clip_norm: float | None) -> list[Tensor]:
    """FedAvg on logits H V p."""
    server = [torch.from_numpy(V0), torch.from_numpy(H0)]
    for round in range(ROUNDS):
        total = [torch.zeros_like(leaf) for leaf in server]
        for client, share in enumerate(SHARE):
            w = [leaf.clone().requires_grad_() for leaf in server]
            optimizer = make([{"params": [leaf]} for leaf in w])
            for factors, (pixels, labels) in zip(FACTORS, batches(client, round, STEPS), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(torch.from_numpy(pixels) @ w[0].T @ w[1].T, torch.from_numpy(labels)).backward()
                for leaf, group, factor in zip(w, optimizer.param_groups, factors, strict=True):
                    group["lr"] = factor * lr
                    leaf.grad = leaf.grad if factor else None
                if clip_norm is not None:
                    clip_grad_norm_(w, clip_norm)
                optimizer.step()
            total = [t + share * leaf.detach() for t, leaf in zip(total, w, strict=True)]
        server = total
    return server


@both_executors
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_golden_numbers(optimizer: str, executor: str) -> None:
    ours, theirs, clip_norm = OPTIMIZERS[optimizer]
    expected = golden(theirs, ours.lr, clip_norm)
    for method in (Phases(), TensorPhases(), Elementwise()):
        settings: dict[str, Any] = {"network": TwoLayers(), "images": images(), "clients": CLIENTS, "steps": STEPS}
        trainer = toy_trainer(method, executor=executor, sgd=ours, batch_size=2, **settings)
        train(ROUNDS, trainer)
        for name, leaf in zip(("hidden.weight", "head.weight"), expected, strict=True):
            np.testing.assert_allclose(trainer.x[name].numpy(), leaf.numpy(), rtol=0, atol=1e-12)


def test_a_parameter_that_rests_is_no_part_of_a_perturbation() -> None:
    """At the last step only the head moves: the second gradient is at weights that differ in the head alone."""
    seen: list[Tree] = []

    class Sharp(Phases):
        def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            seen.append(g)
            return w

    trainer = toy_trainer(Sharp(), network=TwoLayers(), images=images(), clients=CLIENTS, steps=STEPS, batch_size=2)
    train(1, trainer)
    for step, g in enumerate(seen):
        hidden, head = FACTORS[step % STEPS]
        assert bool(g["hidden.weight"].any()) == bool(hidden) and bool(g["head.weight"].any()) == bool(head)


def test_an_infinite_step_leaves_what_rests() -> None:
    class Broken(Method):
        def rates(self, name: str, ctx: Context) -> float:
            return float(name.startswith("head"))

        def step(self, w: Tree, moved: Tree, ctx: Context) -> Tree:
            return {**moved, "hidden.weight": moved["hidden.weight"] * float("inf")}

    trainer = toy_trainer(Broken(), network=TwoLayers(), images=images(), clients=CLIENTS, steps=STEPS, batch_size=2)
    train(1, trainer)
    assert np.array_equal(trainer.x["hidden.weight"].numpy(), V0)
