"""Buffers of any dtype, and torch's own batch normalization."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Sgd
from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.samples import fast
from tests.toys import check_every_way, everything, toy_trainer, train

SETTINGS: dict[str, Any] = {"model": "bn-cnn", "sgd": Sgd(0.01, momentum=0.5), "steps": [3, 1, 4]}


def trainer(executor: str, method: str = "fedavg", **settings: Any) -> FederatedTrainer:
    return toy_trainer(METHODS.parse(method), **{"executor": executor, **SETTINGS, **settings})


def on(executor: str, **settings: Any) -> dict[str, Tensor]:
    one = trainer(executor, **settings)
    train(2, one)
    return everything(one)


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedbn"))
def test_every_way_to_train_agrees(method: str) -> None:
    for batch_size in (5, 7) if method == "scaffold" else (5,):
        check_every_way(partial(trainer, method=method, batch_size=batch_size))


def test_a_cumulative_mean_of_statistics() -> None:
    loop, stacked = (on(executor, model="cumulative-bn-cnn") for executor in ("loop", "stacked"))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(loop[f"buffers/body.2.{name}"], stacked[f"buffers/body.2.{name}"])
        assert not torch.equal(loop[f"buffers/body.2.{name}"], on("loop")[f"buffers/body.2.{name}"])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_integers_and_booleans_are_the_largest_of_the_participants(executor: str) -> None:
    """The clients take 3, 1 and 4 steps; the largest pixel, 1, is in every batch."""
    after = on(executor)
    assert after["buffers/body.2.num_batches_tracked"].tolist() == 2 * 4
    assert after["buffers/body.2.num_batches_tracked"].dtype == torch.int64
    assert after["buffers/body.0.lowest"].tolist() == 2 * -1
    assert after["buffers/body.0.seen"].tolist() == [True, False]


def test_chunks_change_no_bit() -> None:
    whole, chunks = on("stacked"), on("stacked", chunk=2)
    assert all(torch.equal(chunks[name], leaf) for name, leaf in whole.items())


def test_bytes_of_all_dtypes_are_counted() -> None:
    one = toy_trainer(Method(), **SETTINGS)
    train(1, one)
    sizes = [leaf.numel() * leaf.element_size() for leaf in (*one.x.values(), *one.buffers.values())]
    assert one.bytes_up == 3 * sum(sizes)
