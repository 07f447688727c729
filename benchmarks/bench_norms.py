"""CPU time of a client's local step with each normalization, relative to none.

    uv run python benchmarks/bench_norms.py [--model cnn] [--rounds 15] [--norms ln,gn]

Loop executor, one thread, batches of 32 random images of 32x32 pixels with flip and crop, float32; a round is one
client with E = 5 steps. Every norm takes its turn in every round, and the ratios are taken within a round, so that a
noisy machine slows all of them. CPU time, not wall time: a busy machine's waits do not count.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from functools import partial

import torch

from flbench.bench.workloads import random_data
from flbench.config import parse_experiment
from flbench.data.arrays import Data
from flbench.engine.rounds import Trainer
from flbench.engine.setup import make_trainer
from flbench.registry import MODELS, NORMS

STEPS = 5


def trainer_of(model: str, norm: str, data: Data) -> Trainer:
    experiment = parse_experiment(
        {"dataset": "cifar10", "model": model, "norm": norm, "partition": "iid", "clients": 1, "E": STEPS}
    )
    return make_trainer(experiment, data, device="cpu", executor="loop", pool=1)[0]


def cpu_seconds(trainer: Trainer) -> float:
    began = time.process_time()
    trainer.step()
    return (time.process_time() - began) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds, after two to warm up")
    parser.add_argument("--norms", default="", help="names with commas between them (all)")
    arguments = parser.parse_args()
    fits = partial(lambda model, name: not NORMS.parse(name).problem(model, (3, 32, 32)), MODELS.parse(arguments.model))
    names = arguments.norms.split(",") if arguments.norms else list(filter(fits, NORMS.names()))
    torch.set_num_threads(1)
    data = random_data((3, 32, 32), 10, train=1000)
    trainers = {name: trainer_of(arguments.model, name, data) for name in ["none", *names]}
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(arguments.rounds + 2):
        for name, trainer in trainers.items():
            spent = cpu_seconds(trainer)
            if number >= 2:
                seconds[name].append(spent)
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {load}"
    print(f"{machine}, python {platform.python_version()}, torch {torch.__version__}")
    print(f"{arguments.model}, batch 32, loop executor, one thread, n = {arguments.rounds} rounds of {STEPS} steps")
    print(f"{'norm':16} {'ms a step':>9}  relative to none: median (min to max)")
    for name, spent in seconds.items():
        ratios = [mine / none for mine, none in zip(spent, seconds["none"], strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{name:16} {1000 * statistics.median(spent):9.1f}  {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
