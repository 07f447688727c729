"""Partial last batches of local epochs: exact in the loop, in stacks, in several runs and in recorded rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flbench.config import Federated, InvalidExperiment, parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.batches import federated_rows, partial_rows, steps_of_epochs
from flbench.engine import setup
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.optimizers import Sgd
from flbench.engine.partial_batches import stacks_partial_batches
from flbench.engine.setup import executor_for, make_network, make_trainer
from flbench.errors import UserError
from flbench.registry import METHODS
from tests.conformance.problem import (
    BATCH,
    CLIENTS,
    LABELS,
    LR,
    PIXELS,
    SHARE,
    W0,
    Array,
    both_executors,
    gradient,
    trainer_of,
)
from tests.recording import rerun
from tests.toys import everything, largest_difference, same_bits, toy_clients, toy_network, toy_trainer, train

KEY: dict[str, int] = {"seed": 0, "client": 1, "round": 3}


def test_every_epoch_has_each_sample_once() -> None:
    rows, sizes = partial_rows(np.arange(100, 110), **KEY, steps=9, batch_size=4)
    assert sizes.tolist() == [4, 4, 2] * 3
    for epoch in range(3):
        seen = [row for batch, size in zip(rows, sizes, strict=True) for row in batch[:size]][10 * epoch :][:10]
        assert sorted(seen) == list(range(100, 110))
    assert set(rows.ravel()) <= set(range(100, 110))
    assert steps_of_epochs(10, epochs=3, batch_size=4, drop_last=False) == 9


def test_a_client_smaller_than_a_batch_takes_one_step_an_epoch() -> None:
    rows, sizes = partial_rows(np.arange(3), **KEY, steps=2, batch_size=5)
    assert sizes.tolist() == [3, 3]
    assert all(sorted(batch[:3]) == [0, 1, 2] for batch in rows)
    assert steps_of_epochs(3, epochs=2, batch_size=5, drop_last=False) == 2


def test_full_batches_are_the_usual_ones() -> None:
    rows, sizes = partial_rows(np.arange(12), **KEY, steps=6, batch_size=4)
    assert np.array_equal(rows, federated_rows(np.arange(12), **KEY, steps=6, batch_size=4))
    assert sizes.tolist() == [4] * 6


def golden(epochs: int, batch: int) -> Array:
    """FedAvg on softmax regression: every step along the mean gradient of the samples that are there."""
    x = W0
    for round in range(2):
        ends = []
        for client, own in enumerate(CLIENTS.train):
            w, steps = x, steps_of_epochs(len(own), epochs=epochs, batch_size=batch, drop_last=False)
            key = {"seed": 0, "client": client, "round": round}
            for rows, size in zip(*partial_rows(own, **key, steps=steps, batch_size=batch), strict=True):
                w = w - LR * gradient(w, PIXELS[rows[:size]] / 16, LABELS[rows[:size]])
            ends.append(w)
        x = sum(share * end for share, end in zip(SHARE, ends, strict=True))
    return np.asarray(x)


@both_executors
@pytest.mark.parametrize("batch", [BATCH, 3, 4, 5])
def test_golden_numbers(executor: str, batch: int) -> None:
    steps = [steps_of_epochs(len(own), epochs=2, batch_size=batch, drop_last=False) for own in CLIENTS.train]
    trainer = trainer_of("fedavg", executor, steps=steps, batch_size=batch, drop_last=False)
    train(2, trainer)
    np.testing.assert_allclose(trainer.x["head.weight"].numpy(), golden(2, batch), rtol=0, atol=1e-12)


def partial(method: str, **settings: Any) -> FederatedTrainer:
    clients = settings.pop("clients", toy_clients((20, 13, 27)))
    steps = [steps_of_epochs(len(own), epochs=2, batch_size=6, drop_last=False) for own in clients.train]
    sgd = settings.pop("sgd", Sgd(0.1, 0.5, 0.01))
    return toy_trainer(
        METHODS.parse(method), clients=clients, steps=steps, batch_size=6, sgd=sgd, drop_last=False, **settings
    )


STACKABLE = [name for name in METHODS.classes if stacks_partial_batches(METHODS.parse(name), toy_network(), (1, 8, 8))]


@pytest.mark.parametrize("norm", ["none", "ln"])
@pytest.mark.parametrize("method", STACKABLE)
def test_a_stack_computes_what_the_loop_does(method: str, norm: str) -> None:
    trainers = [partial(method, norm=norm, executor=way) for way in ("loop", "stacked")]
    for trainer in trainers:
        train(2, trainer)
    loop, stacked = trainers
    assert largest_difference(everything(loop), everything(stacked)) < 1e-10
    assert float(loop._loss) == pytest.approx(float(stacked._loss), abs=1e-10)


def test_several_runs_and_recorded_rounds_compute_the_same() -> None:
    alone = [partial("scaffold", seed=seed, sgd=Sgd(lr)) for seed, lr in ((0, 0.1), (1, 0.05))]
    together = [partial("scaffold", executor="stacked", seed=s, sgd=Sgd(lr)) for s, lr in ((0, 0.1), (1, 0.05))]
    recorded = partial("scaffold", executor="stacked", sgd=Sgd(0.1), record=rerun)
    for _ in range(3):
        step_together(together, [False, False])
        for trainer in (*alone, recorded):
            trainer.step()
    for one, other in zip([*alone, alone[0]], [*together, recorded], strict=True):
        assert largest_difference(everything(one), everything(other)) < 1e-10


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_without_partial_batches_nothing_changes(executor: str) -> None:
    settings: dict[str, Any] = {"clients": toy_clients((18, 12, 30)), "steps": [6, 4, 10], "executor": executor}
    usual, partial_ones = (
        toy_trainer(METHODS.parse("scaffold"), batch_size=6, drop_last=drop, **settings) for drop in (True, False)
    )
    for trainer in (usual, partial_ones):
        train(2, trainer)
    if executor == "loop":
        assert same_bits(usual, partial_ones)
    assert largest_difference(everything(usual), everything(partial_ones)) < 1e-12


#: Method, norm, head, and whether clients with partial batches can be a stack.
WHOLE_BATCHES = [
    ("fedavg", "none", "linear", True),
    ("scaffold", "ln", "linear", True),
    ("fedavg", "bn", "linear", False),
    ("fedavg", "bn-static", "etf", False),  # the sum of its logits is 0
    ("feddecorr", "none", "linear", False),  # has a penalty
    ("fedlc", "none", "linear", False),  # changes the logits
    ("fedaws", "none", "linear", False),  # has a loss of its own
]


@pytest.mark.parametrize(
    ("method", "norm", "head", "stacks"),
    WHOLE_BATCHES,
)
def test_what_sees_whole_batches_is_trained_by_the_loop(method: str, norm: str, head: str, stacks: bool) -> None:
    raw = {"local_epochs": 1, "batch_size": 4, "drop_last": False, "model": {"name": "mlp", "widths": [12]}}
    experiment = parse_experiment({**raw, "method": method, "norm": norm, "head": head})
    assert isinstance(experiment, Federated)
    assert executor_for(experiment, _digits(), device="cpu", wanted="stacked") == ("stacked" if stacks else "loop")
    before = toy_network(norm=norm, head=head).eval()
    buffers = {name: leaf.clone() for name, leaf in before.named_buffers()}
    assert stacks_partial_batches(METHODS.parse(method), before, (1, 8, 8)) == stacks
    assert all(torch.equal(leaf, buffers[name]) for name, leaf in before.named_buffers())


class TimesTheBatch(nn.Module):
    """Logits that are a product with the mean over the batch: without buffers, and with no gradient at black images."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = images.flatten(1)
        return features, self.head(features * features.mean(0))


def test_a_product_over_the_batch_is_trained_by_the_loop() -> None:
    assert not stacks_partial_batches(METHODS.parse("fedavg"), TimesTheBatch(), (1, 8, 8))


@pytest.mark.parametrize("batches", [{"local_epochs": 1, "drop_last": False}, {"local_epochs": 1}])
def test_choosing_the_executor_builds_no_network_of_its_own(
    batches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def counted(experiment: Federated, data: Data, device: str) -> nn.Module:
        built.append(device)
        return make_network(experiment, data, device)

    monkeypatch.setattr(setup, "make_network", counted)
    experiment = parse_experiment({"model": {"name": "mlp", "widths": [4]}, "batch_size": 4, **batches})
    assert isinstance(experiment, Federated)
    trainer, _ = make_trainer(experiment, _digits(), device="cpu", executor="auto", pool=1)
    assert trainer.executor.name == "native"
    assert built == ["cpu"] * 2, "for the initial weights, and for the executor"


def _digits() -> Data:
    generator = np.random.default_rng(0)
    arrays = Arrays(generator.integers(0, 17, (90, 1, 8, 8), dtype=np.uint8), np.arange(90) % 10)
    return Data(arrays, arrays, 10, tuple("0123456789"), 16, "")


def test_a_partial_batch_that_is_too_small_is_refused() -> None:
    raw = {"local_epochs": 1, "batch_size": 4, "drop_last": False, "norm": "bn", "partition": "iid", "clients": 10}
    experiment = parse_experiment(raw)
    assert isinstance(experiment, Federated)
    with pytest.raises(UserError, match="bn needs at least 2 samples in a batch, and the last batch of a client has 1"):
        make_trainer(experiment, _digits(), device="cpu", executor="loop", pool=1)


def test_the_field() -> None:
    with pytest.raises(InvalidExperiment, match="drop_last: false needs local_epochs"):
        parse_experiment({"drop_last": False})
    epochs = {"local_epochs": 2}
    assert parse_experiment({**epochs, "drop_last": True}).run_id == parse_experiment(epochs).run_id
    assert parse_experiment({**epochs, "drop_last": False}).run_id != parse_experiment(epochs).run_id
