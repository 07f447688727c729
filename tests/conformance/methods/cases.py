"""What tests of all methods know of each one, from the file beside this one that tests it.

``test_NAME.py`` tests the methods of ``flbench/methods/NAME.py``: their golden numbers and invariants, ``CASES`` by the
name of the method where it needs an entry, and ``MUTATIONS``, mistakes in the module that its tests detect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

from flbench.engine.device_data import DeviceData
from flbench.methods.base import Batch, Cohort, Context, Method, Outputs, Tree, overrides
from flbench.registry import METHODS
from tests.toys import toy_images, toy_trainer, train


@dataclass(frozen=True)
class Case:
    """What tests of all methods must know of one of them.

    Attributes:
        off: settings with which it is FedAvg if all clients have all classes; empty if there are none.
        values: its hyperparameters in four runs that are trained together; by default the defaults.
        tolerance: within which it is FedAvg.
        sends: what clients send besides one set of weights and statistics, as (numbers, sets of weights).
        has_effect: whether it differs from FedAvg on clients that lack a class and take unequal steps.
    """

    off: Sequence[dict[str, Any]] = ()
    values: Sequence[dict[str, Any]] = ({},) * 4
    tolerance: float = 0
    sends: tuple[int, int] = (0, 0)
    has_effect: bool = True


def values(field: str, *each: float) -> list[dict[str, Any]]:
    """Return settings of one field."""
    return [{field: value} for value in each]


def module_of(file: str) -> ModuleType:
    """Return the tests of a module of ``flbench.methods``."""
    return import_module(f"tests.conformance.methods.test_{file}")


def case_of(method: str) -> Case:
    tests = module_of(METHODS[method].__module__.rpartition(".")[2])
    return getattr(tests, "CASES", {}).get(method, Case())


def parsed(name: str, **settings: float | str) -> Method:
    """Return a method with these settings, as registered at the moment."""
    method: Method = METHODS.parse({"name": name, **settings})
    return method


def after(method: Method, rounds: int = 3, **kwargs: Any) -> Tree:
    trainer = toy_trainer(method, **kwargs)
    train(rounds, trainer)
    return trainer.x


def toy_skewed_images() -> DeviceData:
    """Return images with labels such that client 0 lacks class 2 and client 1 lacks class 0."""
    labels = torch.cat([torch.arange(20) % 2, 1 + torch.arange(14) % 2, torch.arange(26) % 3])
    return replace(toy_images(), train_labels_M=labels)


def context_of(x: Tree, **given: Any) -> Context:
    """Return a context of a client with all classes."""
    defaults: dict[str, Any] = {"server": {}, "client": {}, "counts_Y": torch.ones(3), "lr": 0.1, "steps": 1}
    others: dict[str, Any] = {"relative_size": 1.0, "round": 0, "head": "head.weight", "buffers": {}}
    return Context(x=x, **{**defaults, **others, **given})


def cohort_of(share: Sequence[float], steps: Sequence[int] = (), momentum: float = 0.0) -> Cohort:
    """Return participants with one sample of each of three classes, and by default three steps."""
    return Cohort(share, steps or [3] * len(share), np.ones((len(share), 3), dtype=np.int64), momentum)


def assert_penalty_gradient(method: Method, w: Tree, batch: Batch, ctx: Context, rtol: float = 0) -> None:
    """Compare the gradient by hand, of the penalty or of the method's own loss, with autograd's, in float64."""
    given = {"features_BD": batch.features_BD, "logits_BY": batch.logits_BY, **w}
    leaves = {name: leaf.detach().double().requires_grad_() for name, leaf in given.items()}
    own = {name: leaves[name] for name in ("features_BD", "logits_BY")}
    seen = {name: leaves[name] for name in w}, replace(batch, **own)
    of_loss = overrides(type(method), "loss_gradient")
    value = method.loss(*seen, ctx) if of_loss else method.penalty(*seen, ctx)
    expected = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    if method.elementwise:  # it sees a stack, here of one client
        w, batch, ctx = _stacked(w), _stacked_batch(batch), _stacked_context(ctx)
    found = method.penalty_gradient(w, batch, ctx)
    if of_loss:
        loss, found = method.loss_gradient(w, batch, ctx)
        torch.testing.assert_close(loss.view(()), value.detach(), rtol=0, atol=1e-12)
    assert found
    for name, gradient in zip(leaves, expected, strict=True):
        derived = found[name].reshape(gradient.shape) if name in found else 0 * gradient
        torch.testing.assert_close(derived, gradient, rtol=rtol, atol=1e-12)


def _stacked(tree: Tree) -> Tree:
    return {name: leaf.unsqueeze(-1) for name, leaf in tree.items()}


def _stacked_batch(batch: Batch) -> Batch:
    own = _stacked({name: leaf for name, leaf in vars(batch).items() if name != "teachers"})
    return Batch(**own, teachers={name: Outputs(**_stacked(vars(each))) for name, each in batch.teachers.items()})


def _stacked_context(ctx: Context) -> Context:
    trees = {name: _stacked(getattr(ctx, name)) for name in ("x", "server", "client")}
    return replace(ctx, counts_Y=ctx.counts_Y.unsqueeze(-1), **trees)


def batch_of(features: torch.Tensor, logits: torch.Tensor, labels: list[int], **teachers: Outputs) -> Batch:
    return Batch(torch.tensor(labels), features, logits, teachers)
