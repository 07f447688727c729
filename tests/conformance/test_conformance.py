"""What must hold of every method: with its own term off it is FedAvg, with it on it is not; and its invariants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flbench.engine.local import Sgd
from flbench.methods.base import Context, Method, Tree
from flbench.methods.fedbn import FedBN
from flbench.methods.scaffold import Scaffold
from flbench.registry import METHODS
from tests.toys import largest_difference, toy_clients, toy_images, toy_network, toy_trainer

METHOD_NAMES = ["fedavg", "scaffold", "fedyogi", "fedbn"]


def after(method: Method, rounds: int = 3, **kwargs: object) -> Tree:
    trainer = toy_trainer(method, **kwargs)  # type: ignore[arg-type]
    for _ in range(rounds):
        trainer.step()
    return trainer.x


def test_every_registered_method_is_tested_here() -> None:
    assert set(METHOD_NAMES) == set(METHODS.names())


def test_scaffold_is_fedavg_in_round_one_and_never_again() -> None:
    assert largest_difference(after(Scaffold(), rounds=1), after(Method(), rounds=1)) == 0
    assert largest_difference(after(Scaffold(), rounds=2), after(Method(), rounds=2)) > 1e-4


def test_fedyogi_is_not_fedavg() -> None:
    assert largest_difference(after(METHODS.parse("fedyogi")), after(Method())) > 1e-4


def test_fedbn_is_fedavg_without_batch_norm_only() -> None:
    for norm in ("none", "fn", "ln", "gn"):
        assert largest_difference(after(FedBN(), norm=norm), after(Method(), norm=norm)) == 0
    fedavg = {name: leaf for name, leaf in after(Method(), norm="bn").items() if "after" not in name}
    assert largest_difference(after(FedBN(), norm="bn"), fedavg) > 1e-4


def test_scaffold_controls_average_to_the_servers() -> None:
    trainer = toy_trainer(Scaffold(), norm="ln")
    for _ in range(4):
        trainer.step()
        means = {name: leaf.mean(0) for name, leaf in trainer.states.items()}
        assert largest_difference(means, trainer.server) < 1e-14
    assert max(float(leaf.abs().max()) for leaf in trainer.server.values()) > 1e-3


def test_scaffold_control_is_the_mean_gradient_along_the_path() -> None:
    """Without momentum (x - w) / (K lr) is the mean corrected direction, so c_i' is the mean raw gradient."""
    seen: list[Tree] = []

    class Recording(Scaffold):
        def direction(self, g: Tree, ctx: Context) -> Tree:
            seen.append({name: leaf.clone() for name, leaf in g.items()})
            return super().direction(g, ctx)

    trainer = toy_trainer(Recording(), clients=toy_clients((20,)), steps=4)
    for _ in range(3):
        seen.clear()
        trainer.step()
        mean = {name: torch.stack([g[name] for g in seen]).mean(0) for name in seen[0]}
        assert largest_difference(mean, {name: leaf[0] for name, leaf in trainer.states.items()}) < 1e-12


def test_fedbn_finds_batch_norm_by_type_not_by_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn_like_name = nn.Linear(2, 2)
            self.shortcut = nn.BatchNorm1d(2)
            self.group = nn.GroupNorm(1, 2)

    kept = FedBN().local_names(Odd())
    assert kept == {f"shortcut.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    ours = FedBN().local_names(toy_network(norm="bn"))
    layers = ("trunk.after1", "trunk.after2")
    assert ours == {f"{at}.{n}" for at in layers for n in ("weight", "bias", "running_mean", "running_var")}


def test_fedbn_norm_layers_never_leave_the_client() -> None:
    trainer = toy_trainer(FedBN(), norm="bn")
    for _ in range(2):
        trainer.step()
    assert not trainer.buffers
    assert all("after" not in name for name in trainer.x)
    spread = trainer.local["trunk.after1.running_mean"].std(0).max()
    assert spread > 1e-4, "every client has statistics of its own"
    assert set(trainer.evaluate()) >= {"acc_personal", "acc_global"}


def test_one_step_of_equal_clients_is_centralized_sgd_on_the_union_batch() -> None:
    """E = 1, equal sizes, no momentum, no batch norm: the mean of the gradients is the gradient of the mean."""
    images = toy_images(train=15)
    split = toy_trainer(Method(), images=images, clients=toy_clients((5, 5, 5)), steps=1, batch_size=5)
    whole = toy_trainer(Method(), images=images, clients=toy_clients((15,)), steps=1, batch_size=15)
    for _ in range(5):
        split.step()
        whole.step()
    assert largest_difference(split.x, whole.x) < 1e-14


def test_a_client_that_does_not_take_part_keeps_its_state() -> None:
    trainer = toy_trainer(Scaffold(), participation=1 / 3)
    before = {name: leaf.clone() for name, leaf in trainer.states.items()}
    (client,) = trainer.cohort()
    trainer.step()
    for name, leaf in trainer.states.items():
        others = [k for k in range(3) if k != client]
        assert torch.equal(leaf[others], before[name][others])
        assert not torch.equal(leaf[client], before[name][client])


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_hooks_do_not_touch_their_inputs(method: str) -> None:
    trainer = toy_trainer(METHODS.parse(method), norm="bn")
    x = {name: leaf.clone() for name, leaf in trainer.x.items()}
    first = trainer.x
    trainer.step()
    assert largest_difference(first, x) == 0


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_momentum_changes_training(method: str) -> None:
    spec = METHODS.parse(method)
    assert largest_difference(after(spec, sgd=Sgd(0.1, momentum=0.9)), after(spec, sgd=Sgd(0.1))) > 1e-4
