"""One federated round of the CIFAR-10 CNN against a plain PyTorch loop, data included.

    uv run python benchmarks/bench_cnn_round.py [--rounds 7] [--norm none]

Both train 10 one-class clients with E = 10 steps of batch 32, flip and crop, float32, on two cores: flbench with its
pool of two threads, the plain loop one client after another with two torch threads (nn.Module, optim.SGD, images in
memory as uint8 and augmented as tensors: what a careful user writes). They take turns in one process, and the ratio is
taken pair by pair, so that a noisy machine slows both. Without CIFAR-10 in $FLBENCH_DATA the images are random, which
costs the same.
"""

from __future__ import annotations

import argparse
import copy
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from flbench.config import parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.datasets import load
from flbench.engine.setup import make_trainer, shards_of
from flbench.errors import DataMissing
from flbench.models.network import build

CORES = 2


def cifar10(dataset: object) -> Data:
    try:
        return load(dataset)  # type: ignore[arg-type]
    except DataMissing:
        generator = np.random.default_rng(0)

        def half(count: int) -> Arrays:
            images = generator.integers(0, 256, size=(count, 3, 32, 32), dtype=np.uint8)
            return Arrays(images, np.arange(count) % 10)

        return Data(half(50_000), half(10_000), 10, tuple("0123456789"), 255, "random")


class PlainLoop:
    """FedAvg as a careful user writes it."""

    def __init__(self, network: nn.Module, images: Tensor, labels: Tensor, clients: list[Tensor]) -> None:
        self.network, self.images, self.labels, self.clients = network, images, labels, clients

    def round(self) -> None:
        start = copy.deepcopy(self.network.state_dict())
        total = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
        samples = sum(map(len, self.clients))
        for rows in self.clients:
            self.network.load_state_dict(start)
            optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
            order = rows[torch.randperm(len(rows))]
            for step in range(10):
                batch = order[step * 32 : step * 32 + 32]
                optimizer.zero_grad()
                logits = self.network(augment(self.images[batch]).float() / 255)[1]
                nn.functional.cross_entropy(logits, self.labels[batch]).backward()
                optimizer.step()
            for name, leaf in self.network.state_dict().items():
                total[name] += leaf * (len(rows) / samples)
        self.network.load_state_dict(total)


def augment(images: Tensor) -> Tensor:
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2, len(images)))
    rows = (top[:, None] + torch.arange(32))[:, None, :, None]
    columns = (left[:, None] + torch.arange(32))[:, None, None, :]
    crops = padded[torch.arange(len(images))[:, None, None, None], torch.arange(3)[None, :, None, None], rows, columns]
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, crops.flip(-1), crops)


def timed(threads: int, work: Callable[[], object]) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of each, after one to warm up")
    parser.add_argument("--norm", default="none")
    arguments = parser.parse_args()
    experiment = parse_experiment(
        {"dataset": "cifar10", "model": "cnn", "norm": arguments.norm, "partition": "classes:1"}
    )
    data = cifar10(experiment.dataset)
    trainer, numerics = make_trainer(experiment, data, device="cpu", executor="auto", pool=CORES)
    network = build(experiment.model, (3, 32, 32), 10, experiment.norm, False, seed=0)  # type: ignore[arg-type]
    images, labels = (torch.from_numpy(np.array(a)) for a in (data.train.images, data.train.labels))
    plain = PlainLoop(network, images, labels, [torch.from_numpy(r) for r in shards_of(experiment, data).train])
    for warm in (trainer.step, plain.round):
        timed(CORES, warm)
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(timed(1, trainer.step))
        theirs.append(timed(CORES, plain.round))
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {CORES} cores, python {platform.python_version()}, torch {torch.__version__}")
    print(f"CIFAR-10 ({data.fingerprint}), cnn, norm {arguments.norm}, 10 clients, E=10, batch 32, {numerics.executor}")
    print(f"n = {arguments.rounds} rounds of each, in turns")
    for name, values, unit in (("flbench", ours, "s"), ("plain loop", theirs, "s"), ("plain / flbench", ratios, "x")):
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name:16} median {middle:.3f}{unit}   min {low:.3f}   max {high:.3f}")


if __name__ == "__main__":
    main()
