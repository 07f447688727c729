"""Properties of every method: without its own term it equals FedAvg, with the term it does not, and its invariants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from flbench.engine.optimizers import Sgd
from flbench.methods.base import Batch, Context, Method, Tree, tmap
from flbench.methods.scaffold import Scaffold
from flbench.registry import METHODS
from tests.conformance.methods.cases import after, case_of, module_of, toy_skewed_images
from tests.toys import largest_difference, toy_clients, toy_images, toy_trainer, train

every_method = pytest.mark.parametrize("method", METHODS.classes)

#: Methods and settings with which they are FedAvg.
TERM_OFF = [(name, off) for name in METHODS.classes for off in case_of(name).off]


def test_every_module_of_methods_has_golden_numbers_and_mutations() -> None:
    """Each has a file, which has what its methods need (``methods/cases.py``)."""
    for module in {cls.__module__.rpartition(".")[2] for cls in METHODS.classes.values()}:
        tests = module_of(module)
        assert tests.MUTATIONS and any(name.startswith("test_") for name in vars(tests))


@pytest.mark.parametrize("norm", ["none", pytest.param("ln", marks=pytest.mark.slow), "bn"])
@pytest.mark.parametrize(("method", "off"), TERM_OFF, ids=str)
def test_without_its_own_term_a_method_is_fedavg(method: str, off: dict[str, Any], norm: str) -> None:
    found = after(METHODS.parse({"name": method, **off}), norm=norm)
    assert largest_difference(found, after(Method(), norm=norm)) <= case_of(method).tolerance


@pytest.mark.parametrize("method", [name for name in METHODS.classes if case_of(name).has_effect])
def test_with_its_own_term_a_method_is_not_fedavg(method: str) -> None:
    skewed, steps = toy_skewed_images(), (2, 4, 5)
    found = after(METHODS.parse(method), images=skewed, steps=steps)
    assert largest_difference(found, after(Method(), images=skewed, steps=steps)) > 1e-6


@every_method
def test_bytes_sent(method: str) -> None:
    """In float64, of 8 bytes. FedCM and MoFedSAM send the mean step alone: the change is K lr times as long."""
    trainer = toy_trainer(METHODS.parse(method), norm="bn")
    train(1, trainer)
    clients, weights = trainer.run.cohort_size, sum(leaf.numel() for leaf in trainer.x.values())
    statistics = sum(leaf.numel() for leaf in trainer.buffers.values())
    numbers, copies = case_of(method).sends
    assert trainer.bytes_up == 8 * clients * ((1 + copies) * weights + statistics + numbers)


@dataclass(frozen=True)
class InPlaceOfChanges(Method):
    """Sends half of the change as float32, in place of the change."""

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.client, tmap(lambda a, x: ((a - x) / 2).float(), w, ctx.x)

    def upload_bytes(self, x: Tree) -> int:
        return 0


def test_a_message_takes_the_place_of_the_change() -> None:
    small, fedavg = toy_trainer(InPlaceOfChanges(), norm="bn"), toy_trainer(Method(), norm="bn")
    train(1, small, fedavg)
    clients, weights = small.run.cohort_size, sum(leaf.numel() for leaf in small.x.values())
    statistics = sum(leaf.numel() for leaf in small.buffers.values())
    assert small.bytes_up == clients * (4 * weights + 8 * statistics)
    assert small.bytes_down == fedavg.bytes_down == fedavg.bytes_up


def test_every_method_has_an_equation_and_a_source() -> None:
    for name in METHODS.classes:
        own = vars(METHODS[name])
        assert own["equation"], name
        assert own["source"], name


def test_one_step_of_equal_clients_is_centralized_sgd_on_the_union_batch() -> None:
    """With E = 1, equal sizes, no momentum and no batch norm, the mean gradient is the gradient on the union."""
    images = toy_images(train=15)
    split = toy_trainer(Method(), images=images, clients=toy_clients((5, 5, 5)), steps=1, batch_size=5)
    whole = toy_trainer(Method(), images=images, clients=toy_clients((15,)), steps=1, batch_size=15)
    train(5, split, whole)
    assert largest_difference(split.x, whole.x) < 1e-14


def test_a_client_outside_the_cohort_keeps_its_state() -> None:
    trainer = toy_trainer(Scaffold(), participation=1 / 3)
    before = {name: leaf.clone() for name, leaf in trainer.states.items()}
    (client,) = trainer.run.cohort(trainer.round)
    trainer.step()
    for name, leaf in trainer.states.items():
        others = [k for k in range(3) if k != client]
        assert torch.equal(leaf[others], before[name][others])
        assert not torch.equal(leaf[client], before[name][client])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_client_may_return_its_state_unchanged(executor: str) -> None:
    class Constant(Method):
        def init_client(self, x: Tree, buffers: Tree) -> Tree:
            return {"seen": 0 * x["head.weight"] + 7}

    trainer = toy_trainer(Constant(), executor=executor)
    trainer.step()
    assert bool((trainer.states["seen"] == 7).all())


@every_method
def test_momentum_changes_training_and_hooks_do_not_modify_their_inputs(method: str) -> None:
    def weights(momentum: float) -> Tree:
        trainer = toy_trainer(METHODS.parse(method), sgd=Sgd(0.1, momentum))
        first, x = trainer.x, {name: leaf.clone() for name, leaf in trainer.x.items()}
        train(2, trainer)
        assert largest_difference(first, x) == 0
        return {**trainer.x, **trainer.local}

    assert largest_difference(weights(0.9), weights(0.0)) > 1e-4


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_teachers_do_not_move(executor: str) -> None:
    """Two teachers, of the same weights, give the same outputs at every step; batch statistics move as FedAvg's do."""
    twice: list[float] = []

    class Twins(Method):
        def teachers(self, ctx: Context) -> dict[str, Tree]:
            return {"first": ctx.x, "second": {**ctx.x, **ctx.buffers}}

        def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Any:
            apart = batch.teachers["first"].features_BD - batch.teachers["second"].features_BD
            return 1e3 * apart.abs().sum() + 0 * batch.teachers["first"].logits_BY.sum()

    found = toy_trainer(Twins(), norm="bn", executor=executor)
    plain = toy_trainer(Method(), norm="bn", executor=executor)
    for _ in range(3):
        twice.append(float(found.step().loss))
        assert twice[-1] == pytest.approx(float(plain.step().loss), abs=1e-12)
    assert largest_difference(found.x, plain.x) == 0
    assert largest_difference(found.buffers, plain.buffers) == 0
