"""Clients leave a stack when they have taken all of their steps: the bits are those of a stack in which they wait."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from flbench.config import Federated, parse_experiment
from flbench.data.datasets import Dataset, load
from flbench.engine.device_data import STAY, LeavingBatches
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.run import RoundInputs
from flbench.engine.server_round import RoundStart
from flbench.engine.setup import make_trainer
from flbench.methods.base import Method
from flbench.models.base import Model
from flbench.registry import METHODS, NORMS
from tests.conformance.methods.cases import case_of
from tests.samples import fast
from tests.toys import record_of, same_bits

#: Seven clients with 1 to 15 batches, and slices of whole registers, without which stacks are not ordered.
UNEQUAL: dict[str, Any] = {
    **{"clients": 12, "participation": 0.6, "partition": "dirichlet:0.3", "min_size": 32, "local_epochs": 2},
    **{"model": {"name": "mlp", "widths": [32]}, "batch_size": 32, "lr": 0.05, "rounds": 3},
}


def experiment_of(**fields: Any) -> Federated:
    experiment = parse_experiment({name: value for name, value in (UNEQUAL | fields).items() if value is not None})
    assert isinstance(experiment, Federated)
    return experiment


def as_made(**fields: Any) -> FederatedTrainer:
    experiment = experiment_of(**fields)
    trainer, _ = make_trainer(
        experiment, load(cast(Dataset, experiment.dataset)), device="cpu", executor="stacked", pool=1
    )
    assert isinstance(trainer, FederatedTrainer)
    return trainer


def trainer_of(ordered: bool, **fields: Any) -> FederatedTrainer:
    trainer = as_made(**fields)
    assert trainer.run.any_place, "stacks could not be ordered, and the test would compare nothing"
    if not ordered:
        trainer.may_order_stacks(False)
    return trainer


def agree(rounds: int = 2, **fields: Any) -> None:
    leaving, waiting = trainer_of(True, **fields), trainer_of(False, **fields)
    for _ in range(rounds):
        assert leaving.step().loss == waiting.step().loss, fields
    assert same_bits(leaving, waiting), fields
    assert record_of(leaving) == record_of(waiting), fields


def steps_of(trainer: FederatedTrainer) -> list[int]:
    return trainer.run.steps_of(trainer.run.cohort(0), 0)


def test_a_stack_has_the_clients_that_still_train() -> None:
    trainer = trainer_of(True)
    inputs = RoundInputs.draw([trainer.run], [0], torch.device("cpu"))
    job = RoundStart(trainer.group, [trainer.run_state()], inputs).job(slice(0, trainer.run.cohort_size))
    assert isinstance(job.batches, LeavingBatches)
    needed = steps_of(trainer)
    assert len(set(needed)) > 3
    sizes = [len(labels) for _, labels, *_ in job.batches.steps()]
    assert sizes == [max(STAY, sum(own > step for own in needed)) for step in range(max(needed))]


def forms(method: str) -> dict[str, Any]:
    return {"method": {"name": method, **case_of(method).values[0]}}


STACKED = [name for name, method in METHODS.classes.items() if method.train is Method.train]


@pytest.mark.parametrize("method", fast(STACKED, "fedavg", "scaffold", "moon", "ditto", "fedrep"))
def test_every_method(method: str) -> None:
    agree(**forms(method), momentum=0.9)


@pytest.mark.parametrize(
    "norm", fast([name for name, norm in NORMS.classes.items() if not norm.lock_step], "bn", "ln", "fixbn")
)
def test_every_norm_of_vectors(norm: str) -> None:
    if NORMS.parse(norm).problem(tuple(cast(Model, experiment_of().model).sites((1, 8, 8)))) is None:
        agree(norm=norm, bias=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "adam"}, {"optimizer": "adamw", "weight_decay": 0.1, "keep_momentum": True},
        {"momentum": 0.9, "keep_momentum": True, "nesterov": True}, {"clip_norm": 0.5, "weight_decay": 0.01},
        {"agc": 0.05}, {"drop_last": False, "min_size": 2}, {"local_epochs": None, "local_steps": "uniform:1:9"},
        {"lr_schedule": "decay:0.9"}, {"precision": "fp64"}, {"train": "head"},
    ],
    ids=str,
)  # fmt: skip
def test_optimizers_partial_batches_and_drawn_steps(fields: dict[str, Any]) -> None:
    agree(**fields)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "fedproto"])
def test_several_runs_in_one_stack(method: str) -> None:
    members = [{"seed": seed, "lr": 0.03 * (seed + 1), **forms(method)} for seed in range(3)]
    together, alone = ([trainer_of(ordered, **one) for one in members] for ordered in (True, False))
    for _ in range(2):
        reports = step_together(together, [False] * 3)
        assert [report.loss for report in reports] == [trainer.step().loss for trainer in alone]
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize("fields", [{"batch_size": 10, "min_size": 10}, {"local_epochs": None, "local_steps": 3}])
def test_stacks_whose_bits_depend_on_places_are_not_ordered(fields: dict[str, Any]) -> None:
    """Logits of ten samples and classes begin at four alignments; and where all take equal steps nobody can leave."""
    assert not as_made(**fields).run.any_place
