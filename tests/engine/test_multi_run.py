"""Runs trained together have the numbers of the runs alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine import executors
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.setup import make_trainer
from flbench.methods.base import Method
from flbench.registry import HEADS, METHODS, MODELS, NORMS
from tests.conformance.methods.cases import case_of
from tests.samples import fast
from tests.toys import record_of, same_bits, toy_trainer, train, train_together

#: What differs between the runs of a group besides the method's hyperparameters (``Case.values``).
MEMBERS: list[dict[str, Any]] = [
    {"seed": 0, "lr": 0.01, "partition": "classes:2", "clients": 10},
    {"seed": 1, "lr": 0.1, "partition": "dirichlet:0.5", "clients": 7},
    {"seed": 1, "lr": 0.03, "partition": "iid", "clients": 5, "participation": 0.5},
    {"seed": 2, "lr": 0.1, "partition": "classes:1", "clients": 10},
]


def group(method: str, norm: str, **fields: Any) -> list[FederatedTrainer]:
    trainers = []
    for number, member in enumerate(MEMBERS):
        spec = {"name": method, **case_of(method).values[number]}
        length = {} if "local_epochs" in fields else {"E": 3}
        model = {"name": "mlp", "widths": [20, 12]}
        given = {"model": model, "norm": norm, "method": spec, **length, **member, **fields}
        experiment = parse_experiment(given)
        trainer, _ = make_trainer(experiment, load(experiment.dataset), device="cpu", executor="stacked", pool=1)
        assert isinstance(trainer, FederatedTrainer)
        trainers.append(trainer)
    return trainers


def train_both(together: list[FederatedTrainer], alone: list[FederatedTrainer], rounds: int = 3) -> None:
    for _ in range(rounds):
        reports = step_together(together, [False] * len(together))
        assert [report.loss for report in reports] == [trainer.step().loss for trainer in alone]


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "scaffold", "fedprox"))
def test_every_method_to_the_bit(method: str) -> None:
    together, alone = group(method, "ln"), group(method, "ln")
    train_both(together, alone)
    assert all(map(same_bits, together, alone))
    assert [record_of(trainer) for trainer in together] == [record_of(trainer) for trainer in alone]


def fits(norm: str, model: str) -> bool:
    return NORMS.parse(norm).problem(tuple(MODELS.parse(model).sites((1, 8, 8)))) is None


#: Norms whose clients can be trained beside those of other runs, on vectors or in residual blocks.
FUSED = sorted(
    name for name, norm in NORMS.classes.items() if not norm.lock_step and (fits(name, "mlp") or fits(name, "resnet18"))
)


@pytest.mark.parametrize("norm", fast(FUSED, "none", "ln", "bn"))
def test_every_norm_to_the_bit(norm: str) -> None:
    images = {"model": {"name": "resnet18", "width": 2}, "E": 1, "batch_size": 4}
    together, alone = (group("fedavg", norm, **({} if fits(norm, "mlp") else images)) for _ in range(2))
    train_both(together, alone)
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize("norm", ["in", "bn", "ln", "gn"])
def test_images_to_the_bit(norm: str) -> None:
    together, alone = (
        [
            toy_trainer(Method(), executor="stacked", model="cnn", norm=norm, image=(1, 16, 16), steps=2, seed=seed)
            for seed in (0, 1)
        ]
        for _ in range(2)
    )
    train_both(together, alone, rounds=2)
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize("head", sorted(HEADS.classes))
def test_every_head_to_the_bit(head: str) -> None:
    """Each run has its own rows, drawn from its seed."""
    together, alone = (group("fedavg", "bn", head=head) for _ in range(2))
    train_both(together, alone)
    assert all(map(same_bits, together, alone))


def test_momentum_decay_and_unequal_steps() -> None:
    fields = {"momentum": 0.9, "weight_decay": 0.01, "local_epochs": 1}
    together, alone = (group("scaffold", "bn", **fields) for _ in range(2))
    train_both(together, alone)
    assert all(map(same_bits, together, alone))


def test_chunks_that_cut_through_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = group("scaffold", "ln")
    monkeypatch.setattr(executors, "CHUNK", 8)
    together = group("scaffold", "ln")
    train_together(2, together)
    train(2, *alone)
    assert all(map(same_bits, together, alone))


def test_a_diverging_run_does_not_touch_its_neighbours() -> None:
    together, alone = group("fedavg", "none"), group("fedavg", "none")
    for trainers in (together, alone):
        trainers[1].x = {name: leaf * float("nan") for name, leaf in trainers[1].x.items()}
    step_together(together, [False] * 4)
    for trainer in alone:
        trainer.step()
    assert [trainer.diverged_in() for trainer in together] == [None, 1, None, None]
    assert all(same_bits(together[k], alone[k]) for k in (0, 2, 3))


def test_observers_get_their_own_clients() -> None:
    together, alone = group("fedavg", "none"), group("fedavg", "none")
    reports = step_together(together, [True, False, True, True])
    assert reports[1].client_params is None
    for number in (0, 2, 3):
        expected = alone[number].step(keep_clients=True)
        found = reports[number].client_params
        assert found is not None and expected.client_params is not None
        assert all(torch.equal(found[name], leaf) for name, leaf in expected.client_params.items())
