"""Runs that train together have, in every setting, the bits of the runs alone; those that would not train alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.config import parse_experiment
from flbench.data.arrays import Data
from flbench.data.datasets import load
from flbench.data.random_images import random_data
from flbench.engine import executors
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.setup import make_trainer
from flbench.engine.stack_bits import same_bits_together
from flbench.registry import METHODS
from tests.samples import fast
from tests.toys import record_of, same_bits


def trainers(clients: int, seeds: int = 3, data: Data | None = None, **fields: Any) -> list[FederatedTrainer]:
    made = []
    for seed in range(seeds):
        given = {"partition": "classes:2", "E": 3, "lr": 0.1, "clients": clients, "seed": seed, **fields}
        experiment = parse_experiment(given)
        trainer, _ = make_trainer(
            experiment, data or load(experiment.dataset), device="cpu", executor="stacked", pool=1
        )
        assert isinstance(trainer, FederatedTrainer)
        made.append(trainer)
    return made


def mlp(*widths: int) -> dict[str, Any]:
    return {"name": "mlp", "widths": list(widths)}


def check(clients: int, **fields: Any) -> list[list[int]]:
    """Train the groups and every run alone, compare to the bit, and return the groups."""
    grouped, alone = trainers(clients, **fields), trainers(clients, **fields)
    groups = same_bits_together(grouped)
    assert sorted(position for group in groups for position in group) == [0, 1, 2]
    for _ in range(2):
        for group in groups:
            step_together([grouped[position] for position in group], [False] * len(group))
        for trainer in alone:
            trainer.step()
    assert all(map(same_bits, grouped, alone))
    assert list(map(record_of, grouped)) == list(map(record_of, alone))
    return groups


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "scaffold"))
def test_every_method_has_its_own_bits(method: str) -> None:
    for batch, widths in ((7, (32, 16)), (10, (64, 64)), (20, (32, 16)), (33, (33, 17))):
        check(5, method=method, batch_size=batch, model=mlp(*widths))


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedlc", "moon", "scaffold"))
def test_whole_periods_of_clients_train_together(method: str) -> None:
    groups = check(8, method=method, batch_size=10, model=mlp(64, 64))
    if method != "fedlc":  # whose groups depend on the counts
        assert groups == [[0, 1, 2]]


@pytest.mark.parametrize("norm", ["bn", "ln", "none", "rms", "scale"])
def test_norms_have_their_own_bits(norm: str) -> None:
    for batch in (7, 33):
        check(5, norm=norm, batch_size=batch, model=mlp(33, 17))


def test_common_settings_train_together() -> None:
    for method in METHODS.classes.keys() - {"fedlc", "local-only"}:
        assert same_bits_together(trainers(10, method=method, model=mlp(64, 64))) == [[0, 1, 2]], method


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert same_bits_together(trainers(5, batch_size=7, model=mlp(32, 16))) == [[2], [1], [0]], "slices not aligned"
    assert same_bits_together(trainers(10, participation=0.1)) == [[2], [1], [0]], "stacks of one client"
    monkeypatch.setattr(executors, "dense_layers", lambda network: None)  # MOON's gradient by autograd
    assert same_bits_together(trainers(10, method="moon", batch_size=10)) == [[2], [1], [0]], "a rest of softplus"


def test_powers_of_class_counts_are_compared() -> None:
    """139 to the power of -1/4 has other bits at the end of a tensor; 140 has the same."""
    alone, together = (trainers(10, 2, method="fedlc") for _ in range(2))
    for trainer in alone:
        trainer.run.counts_NY.fill_(139)
    for trainer in together:
        trainer.run.counts_NY.fill_(140)
    one = torch.full((1,), 139.0) ** -0.25
    assert (same_bits_together(alone) == [[0, 1]]) == torch.equal(one, (torch.full((64,), 139.0) ** -0.25)[:1])
    assert same_bits_together(together) == [[0, 1]]


@pytest.mark.parametrize(("channels", "fewest"), [(1, 8), (2, 4), (3, 3)])
def test_few_channels_are_convolved_in_another_way(channels: int, fewest: int) -> None:
    """All clients' images together have fewer channels than oneDNN's blocks: 8."""
    draw = torch.Generator().manual_seed(0)
    images, weights = (torch.randn(2, 24, channels, 9, 9, generator=draw), torch.randn(24, 16, channels, 5, 5))
    bias = torch.randn(24, 16, generator=draw)

    def convolved(clients: int) -> Tensor:
        of = images[:, :clients].flatten(1, 2), weights[:clients].flatten(0, 1), bias[:clients].flatten()
        return F.conv2d(*of, groups=clients).unflatten(1, (clients, 16))

    every = convolved(24)
    assert all(torch.equal(convolved(clients), every[:, :clients]) for clients in range(fewest, 24))


@pytest.mark.parametrize(("clients", "fused"), [(4, False), (8, True)])
def test_few_clients_with_grey_images_convolve_alone(clients: int, fused: bool) -> None:
    data = random_data((1, 20, 20), 10, train=200)
    fields = {"dataset": "mnist", "model": "cnn", "bias": True, "batch_size": 2, "E": 1, "partition": "iid"}
    assert (len(check(clients, data=data, **fields)) == 1) == fused


def test_no_stack_is_larger_than_a_chunk() -> None:
    assert same_bits_together(trainers(10, 5)) == [[0, 1, 2], [3, 4]]


def test_other_functions_do_not_depend_on_the_place() -> None:
    functions: list[Callable[[Tensor], Tensor]] = [
        torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.tanh, torch.erf, torch.log1p, torch.expm1,
        torch.reciprocal, F.relu, F.logsigmoid, lambda x: x**2, lambda x: x**3, lambda x: x**-0.5, lambda x: x**-1,
    ]  # fmt: skip
    x = torch.rand(4096, generator=torch.Generator().manual_seed(0)) * 4 + 0.01
    for number, function in enumerate(functions):
        assert torch.equal(function(x), torch.cat([function(part) for part in x.split(15)])), number
