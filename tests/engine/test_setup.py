"""From an experiment to a trainer: how many steps each client takes."""

from __future__ import annotations

import math
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flbench.choices import Executor
from flbench.config import Federated, parse_experiment
from flbench.data.datasets import load
from flbench.data.random_images import load_or_random
from flbench.data.shards import shards_of
from flbench.engine import device_data, setup
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import (
    Numerics,
    keep_freed_memory,
    make_network,
    make_trainer,
    matmul_precision_restored,
    runs_worth_fusing,
)
from flbench.engine.trainer import Trainer
from flbench.registry import METHODS
from flbench.store import Lease, Store
from flbench.worker import Options, load_engine

SMALL = {"model": {"name": "mlp", "widths": [8]}, "precision": "fp64", "clients": 4, "batch_size": 32}


def trainer_of(**fields: Any) -> Trainer:
    experiment = parse_experiment({**SMALL, **fields})
    data = load(experiment.dataset)  # type: ignore[arg-type]
    return make_trainer(experiment, data, device="cpu", executor="stacked", pool=1)[0]


@pytest.mark.parametrize(
    ("method", "changes", "executor", "gradient"),
    [
        ("fedavg", {}, "stacked", ""),
        ("fedprox", {}, "stacked", ""),  # with autograd's bits
        ("fedlc", {}, "stacked", ""),
        ("fedntd", {}, "stacked", "by hand"),
        ("fedaws", {"norm": "ln"}, "stacked", "by hand"),
        ("fedntd", {}, "loop", ""),
        ("fedntd", {"precision": "bf16"}, "stacked", ""),
        ("fedntd", {"model": "lenet", "dataset": "fashion_mnist"}, "stacked", ""),
    ],
)
def test_the_numerics_name_gradients_by_hand_that_round_in_another_way(
    method: str, changes: dict[str, Any], executor: Executor, gradient: str
) -> None:
    experiment = parse_experiment({**SMALL, "partition": "iid", "precision": "fp32", "method": method, **changes})
    data = load_or_random(experiment.dataset, None)  # type: ignore[arg-type]
    with matmul_precision_restored():
        _, numerics = make_trainer(experiment, data, device="cpu", executor=executor, pool=1)
    assert numerics.facts().get("gradient", "") == gradient


def steps_of(trainer: Trainer) -> list[int]:
    assert isinstance(trainer, FederatedTrainer)
    return [trainer.run.steps[client] for client in range(4)]


def test_epochs_follow_the_size_of_each_client() -> None:
    fields = {"partition": "dirichlet:0.3", "local_epochs": 2}
    experiment = parse_experiment({**SMALL, **fields})
    assert isinstance(experiment, Federated)
    sizes = [len(rows) for rows in shards_of(experiment, load(experiment.dataset)).train]  # type: ignore[arg-type]
    assert len({size // 32 for size in sizes}) > 1
    assert steps_of(trainer_of(**fields)) == [max(1, size // 32 * 2) for size in sizes]


def test_clients_smaller_than_a_batch_train_for_their_epochs() -> None:
    fields: dict[str, Any] = {"partition": "dirichlet:0.3", "local_epochs": 10, "batch_size": 512, "lr": 0.1}
    experiment = parse_experiment({**SMALL, **fields})
    assert isinstance(experiment, Federated)
    sizes = [len(rows) for rows in shards_of(experiment, load(experiment.dataset)).train]  # type: ignore[arg-type]
    steps = [size // 512 * 10 if size >= 512 else math.ceil(size * 10 / 512) for size in sizes]
    assert min(sizes) < 512
    assert len(set(steps)) > 1
    scaffold, fednova = (trainer_of(**fields, method=method) for method in ("scaffold", "fednova"))
    assert steps_of(scaffold) == steps_of(fednova) == steps
    # SCAFFOLD's new control is c_i - c + (x - w) / (K lr), here of round one: K must be what the client really took.
    assert isinstance(scaffold, FederatedTrainer)
    x = scaffold.x
    report = scaffold.step(keep_clients=True)
    assert report.client_params is not None
    for name, leaf in report.client_params.items():
        for client, k in enumerate(steps):
            torch.testing.assert_close(scaffold.states[name][client], (x[name] - leaf[client]) / (k * 0.1))
    # FedNova weighs client k's change by the share of its samples over K_k.
    assert isinstance(fednova, FederatedTrainer)
    _, weights, *_ = fednova.run.weights(fednova.run.cohort(0), fednova.run.steps)
    share = [size / sum(sizes) for size in sizes]
    effective = sum(p * k for p, k in zip(share, steps, strict=True))
    assert list(weights) == pytest.approx([p * effective / k for p, k in zip(share, steps, strict=True)])


def test_steps_are_the_same_for_all_clients() -> None:
    assert steps_of(trainer_of(partition="dirichlet:0.3", E=7)) == [7] * 4


def test_an_epoch_of_centralized_training_is_one_pass() -> None:
    fields = {name: value for name, value in SMALL.items() if name != "clients"}
    experiment = parse_experiment({**fields, "kind": "centralized", "local_epochs": 1})
    data = load(experiment.dataset)  # type: ignore[arg-type]
    trainer, _ = make_trainer(experiment, data, device="cpu", executor="loop", pool=1)
    assert trainer._steps == 1442 // 32  # type: ignore[attr-defined]
    assert trainer.step().loss > 0


@pytest.mark.parametrize("method", METHODS.classes)
def test_every_method_trains_on_real_data_in_epochs_of_its_clients(method: str) -> None:
    given = {"name": "moon", "mu": 0.1} if method == "moon" else method  # mu = 1 holds features for the first 10 rounds
    trainer = trainer_of(method=given, partition="dirichlet:0.3", local_epochs=1, lr=0.1, batch_size=128)
    first = trainer.step().loss
    for _ in range(7):
        last = trainer.step().loss
    assert trainer.diverged_in() is None
    assert last < first
    assert trainer.evaluate()["acc_global"] is not None


def test_on_a_gpu_as_many_runs_are_fused_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "make_network", lambda experiment, data, _: make_network(experiment, data, "cpu"))
    neighbours: list[int] = []

    def fitting(*given: Any) -> int:
        neighbours.append(given[4])
        return fits

    monkeypatch.setattr(setup, "clients_that_fit", fitting)
    experiment = parse_experiment({"clients": 20, "participation": 0.5})
    data = load(experiment.dataset)  # type: ignore[arg-type]

    def worth(device: str, executor: str = "auto") -> int:
        return runs_worth_fusing(experiment, data, device=device, executor=executor, neighbours=2)

    fits = 35
    assert (worth("cpu"), worth("cuda"), worth("cuda", "loop")) == (3, 3, 1)
    fits = 5
    assert worth("cuda") == 1
    fits = 10_000
    assert worth("cuda") * 10 == 60, "more clients than that in a stack are no faster, however many fit"
    assert neighbours == [2] * 3


def test_a_worker_takes_its_share_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers at ``gpus: 0.5`` fill one GPU between them: in the size of a group, and in that of a stack."""
    stacks = []
    monkeypatch.setattr(setup, "make_network", lambda experiment, data, _: make_network(experiment, data, "cpu"))
    monkeypatch.setattr(device_data, "_copies", lambda same, _: device_data._tensors(same.arrays, "cpu"))
    monkeypatch.setattr(setup, "_gpu_tuner", lambda: SimpleNamespace(record=None))
    monkeypatch.setattr(setup, "clients_that_fit", lambda network, image, batch, method, neighbours: 12 // neighbours)

    def made(*given: Any, **wanted: Any) -> tuple[Trainer, Numerics]:
        trainer, numerics = make_trainer(*given, **wanted)
        assert isinstance(trainer.executor, StackedExecutor)
        stacks.append(trainer.executor.chunk)
        return trainer, numerics

    monkeypatch.setattr("flbench.execution.make_trainer", made)
    experiment = parse_experiment({**SMALL, "partition": "iid", "rounds": 1})
    for neighbours in (1, 2):
        engine = load_engine(Options(device="cuda", neighbours=neighbours))
        assert engine.group_size(experiment) == 3 // neighbours, "runs of 4 clients each"
        attempt = Store(tmp_path / str(neighbours)).claim(experiment, Lease.here(), 1)
        assert attempt is not None
        engine.execute([attempt], should_stop=lambda: False, ended=lambda *_: None)
    assert stacks == [12, 6]


def test_tf32_is_allowed_only_for_precision_tf32_and_restored_after() -> None:
    def allowed() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = allowed()
    with matmul_precision_restored():
        for precision, expected in (("tf32", True), ("fp32", False), ("bf16", False), ("fp64", False)):
            trainer_of(precision=precision, partition="iid")
            assert allowed() == (expected, expected)
    assert allowed() == before


def test_cudnn_does_not_time_its_algorithms_and_the_setting_is_restored_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with matmul_precision_restored():
        trainer_of(partition="iid")
        assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark


def test_glibc_accepts_the_limits_of_freed_memory() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
