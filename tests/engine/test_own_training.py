"""Methods that replace the local steps by their own: what they see, that all else applies, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flbench.config import InvalidExperiment, parse_experiment
from flbench.data.datasets import load
from flbench.engine.hook_checks import checked
from flbench.engine.optimizers import Sgd
from flbench.engine.setup import executor_for
from flbench.errors import UserError
from flbench.methods.base import Batches, Context, Forward, Method, Tree, tmap
from flbench.registry import METHODS
from flbench.testing import check_method
from tests.hook_methods import Uploading
from tests.toys import everything, largest_difference, resumes, same_bits, toy_trainer, train


@dataclass(frozen=True)
class ByHand(Method):
    """SGD as its author writes it: FedAvg."""

    name: ClassVar[str] = "by-hand"

    def train(self, w: Tree, batches: Batches, ctx: Context, forward: Forward) -> tuple[Tree, Tree, Tensor]:
        assert ctx.step == -1
        losses = []
        for images, labels in batches:
            leaves = tmap(lambda leaf: leaf.detach().requires_grad_(), w)
            loss = cross_entropy(forward(leaves, images).logits_BY, labels)
            grads = torch.autograd.grad(loss, list(leaves.values()))
            w = {name: leaf - ctx.lr * g for (name, leaf), g in zip(w.items(), grads, strict=True)}
            losses.append(loss.detach())
        return dict(reversed(w.items())), ctx.client, torch.stack(losses).mean()


@dataclass(frozen=True)
class Sending(ByHand, Uploading):
    """The same with hooks for what becomes of the weights afterwards."""


SETTINGS: dict[str, dict[str, Any]] = {
    "batch normalization": {"norm": "bn", "steps": (3, 1, 4)},
    "dropout": {"model": "encoder", "participation": 0.67},
    "partial batches": {"drop_last": False, "steps": 6},
    "torch's own batch normalization, frozen parts": {"model": "pretrained"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_sgd_by_hand_is_fedavg(setting: str) -> None:
    for own, engine in ((ByHand(), Method()), (Sending(), Uploading())):
        one, other, threads = (
            toy_trainer(method, sgd=Sgd(0.05), **SETTINGS[setting], **way)
            for method, way in ((own, {}), (engine, {}), (own, {"pool": 3}))
        )
        for _ in range(2):
            losses = [trainer.step().loss for trainer in (one, other, threads)]
            assert losses[0] == pytest.approx(losses[1], abs=1e-12)
        assert largest_difference(everything(one), everything(other)) < 1e-12
        assert same_bits(one, threads)
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
        assert resumes(*(toy_trainer(own, **SETTINGS[setting], weights=weights) for weights in (3, 5)))
    check_method(ByHand)


def test_batches_are_the_same_each_time_and_the_network_is_in_training_mode() -> None:
    seen: list[list[tuple[Tensor, Tensor]]] = []

    class Twice(Method):
        def train(self, w: Tree, batches: Batches, ctx: Context, forward: Forward) -> tuple[Tree, Tree, Tensor]:
            first = [forward(w, images).logits_BY for images, _ in batches]
            again = [forward(w, images).logits_BY for images, _ in batches]
            assert all(map(torch.equal, first, again)), "with the masks of the batch"
            assert not torch.equal(first[0], forward(w, next(iter(batches))[0]).logits_BY * 0)
            seen.append([*batches])
            return tmap(lambda leaf: leaf + ctx.random.uniform("noise", leaf), w), {}, first[0].mean()

    first, other = toy_trainer(Twice(), model="encoder"), toy_trainer(Twice(), model="encoder", pool=3)
    train(1, first, other)
    assert same_bits(first, other)
    assert {len(each) for each in seen} == {4}


def failing(body: Callable[..., Any]) -> Method:
    return cast(Method, dataclass(frozen=True)(type("Faulty", (Method,), {"name": "faulty", "train": body}))())


WRONG: list[tuple[Callable[..., Any], str]] = [
    (lambda self, w, *_: w, "returned dict; expected three values: the weights, the client's next state, the mean"),
    (
        lambda self, w, *_: ({}, {}, w["head.weight"].sum()),
        "returned no 'head.weight' in the weights; expected the",
    ),
    (lambda self, w, *_: (w, w, w["head.weight"].sum()), "in the client's state; expected no names"),
    (lambda self, w, *_: (w, {}, 0.5), "returned 0.5 as the loss; expected a tensor of shape ()"),
    (lambda self, w, b, c, forward: forward({}, 0), "raised KeyError: \"forward needs all weights, and got no 'head.w"),
    (lambda self, w, b, c, forward: forward({**w, "haed": 0}, next(iter(b))[0]), "raised KeyError: 'haed'"),
    (
        lambda self, w, *_: (tmap(torch.rand_like, w), {}, w["head.weight"].sum()),
        "draws random numbers from torch's d",
    ),
]


@pytest.mark.parametrize(("body", "problem"), WRONG)
def test_a_mistake_is_one_message(body: Callable[..., Any], problem: str) -> None:
    place = f"{__file__}:{body.__code__.co_firstlineno}: the hook train of the method 'faulty' "
    with pytest.raises(UserError, match=re.escape(place) + ".*" + re.escape(problem)):
        train(1, toy_trainer(failing(body)))


def test_it_is_trained_by_the_loop_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS.classes, "by-hand", ByHand)
    experiment = parse_experiment({"method": "by-hand"})
    data = load(experiment.dataset)
    assert {executor_for(experiment, data, device=device, wanted="auto") for device in ("cpu", "cuda")} == {"loop"}
    refused = r"hook train of the method 'by-hand' trains each client by itself, which --executor stacked cannot do"
    with pytest.raises(UserError, match=refused):
        executor_for(experiment, data, device="cpu", wanted="stacked")
    with pytest.raises(UserError, match="trains each client by itself"):
        toy_trainer(ByHand(), executor="stacked")
    for fields, problem in (
        ({"momentum": 0.9}, "by-hand takes its own local steps, which momentum: 0.9 does not reach; leave it out"),
        ({"optimizer": "adam"}, "which optimizer: adam does not reach"),
        ({"clip_norm": 1.0}, r"which clip_norm: 1\.0 does not reach"),
        ({"norm": "fedtan"}, "take each step together, and by-hand trains each by itself"),
    ):
        with pytest.raises(InvalidExperiment, match=problem):
            parse_experiment({"method": "by-hand", **fields})


def test_hooks_that_nothing_would_call_are_refused() -> None:
    idle = type("Idle", (ByHand,), {"direction": lambda self, w, g, ctx: g})
    misspelt = type("Misspelt", (Method,), {"trian": lambda self, w, batches, ctx, forward: w, "_rate": lambda self: 1})
    for cls, problem in (
        (idle, "the hook direction of the method .* is never called: train takes the place of all steps"),
        (misspelt, "the hook trian of the method .* is none that flbench calls; did you mean 'train'"),
    ):
        with pytest.raises(UserError, match=problem):
            checked(cls())
