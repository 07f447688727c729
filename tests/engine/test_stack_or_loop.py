from __future__ import annotations

import json
from itertools import pairwise

import pytest

from benchmarks.common import data_of, experiment_of
from benchmarks.stack_or_loop import BATCH_SIZES, NETWORKS
from flbench.engine.setup import executor_for
from flbench.engine.stack_or_loop import TABLE, Speeds, speeds

KNOWN = Speeds([100, 10_000], [1, 16], [[8, 2], [2, 0.5]])


@pytest.mark.parametrize(
    ("flops", "batch_size", "speed"),
    [
        (100, 1, 8),
        (100, 16, 2),
        (10_000, 16, 0.5),
        (100, 4, 4),  # between two sizes of batches
        (1000, 1, 4),  # between two networks
        (1000, 4, 2),
        (1, 1, 8),  # beyond the ends
        (1e9, 1000, 0.5),
    ],
)
def test_between_measured_sizes_logarithms_are_linear(flops: float, batch_size: int, speed: float) -> None:
    assert KNOWN.at(flops, batch_size) == pytest.approx(speed)


def test_the_committed_table_has_what_the_script_measures() -> None:
    written = json.loads(TABLE.read_text(encoding="utf-8"))["kinds"]
    assert written.keys() == NETWORKS.keys() == speeds().keys()
    for kind, own in speeds().items():
        assert tuple(written[kind]["networks"]) == NETWORKS[kind]
        assert tuple(own.batch_sizes) == BATCH_SIZES[kind]
        assert all(low < high for low, high in pairwise(own.flops))
        assert [len(row) for row in own.speed] == [len(own.batch_sizes)] * len(own.flops)


@pytest.mark.parametrize(
    ("setting", "executor"),
    [
        ("model=mlp", "native"),
        ("model=mlp norm=dyt", "stacked"),
        ("dataset=fashion_mnist model=mlp precision=bf16", "stacked"),
        ("dataset=fashion_mnist model=mlp model.widths=[200,200] norm=dyt", "stacked"),
        ("dataset=fashion_mnist model=mlp model.widths=[1024,1024] norm=dyt batch_size=64", "loop-onednn"),
        ("dataset=fashion_mnist model=mlp local_epochs=1 drop_last=false method=fedlc", "loop"),  # not stackable
        ("dataset=fashion_mnist model=lenet norm=dyt batch_size=64", "loop"),  # only products of less than 15 MFLOP
        ("dataset=cifar10 model=cnn", "native"),
        ("dataset=cifar10 model=cnn norm=dyt", "loop-onednn"),
        ("dataset=cifar10 model=cnn batch_size=1", "stacked"),
        ("dataset=cifar10 model=resnet18 batch_size=1", "loop"),  # larger than all measured networks
        ("dataset=cifar10 model=cnn precision=bf16", "loop"),
        ("dataset=cifar10 model=cnn precision=fp64", "loop"),
        ("dataset=cifar10 model=simple-vit", "loop-onednn"),
    ],
)
def test_auto_selects_the_executor_of_the_table(setting: str, executor: str) -> None:
    experiment = experiment_of(setting)
    data = data_of(experiment, None)
    assert executor_for(experiment, data, device="cpu", wanted="auto") == executor
