"""Measure the CPU time of a client's local step with each normalization, relative to none.

    python -m benchmarks.norms [--model cnn] [--rounds 15] [--norms ln,gn]

Loop executor, one thread, batches of 32 random images of 32x32 pixels with flip and crop, float32; a round is one
client with E = 5 steps. All norms take turns within each round, and ratios are taken within a round, so that other load
slows all of them equally. CPU time is measured instead of wall time, so waiting on a busy machine does not count.

The last columns show how much of the added time is memory traffic. Normalizing reads its input twice and writes once;
its backward pass reads input and gradient twice and writes once. A ReLU reads and writes once; its backward pass reads
two tensors and writes one. (With a layerwise norm the ReLU cannot move behind the pooling, where it would process a
quarter of the pixels.) The bytes are divided by the rate at which this machine copies tensors of that size in the same
turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import cast

import torch

from benchmarks.processes import machine_line
from flbench.bench.timing import Spread, trainer_of
from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Data
from flbench.data.random_images import random_data
from flbench.engine.setup import make_network
from flbench.engine.trainer import Trainer
from flbench.models import norm_layers
from flbench.models.layers import Relu
from flbench.registry import MODELS, NORMS

STEPS = 5
BATCH = 32

#: Passes through its input that a layer makes, forward and backward together.
NORM_PASSES, RELU_PASSES = 8, 5


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def traffic(model: str, norm: str, data: Data) -> tuple[int, int]:
    """Return the bytes that the norms and ReLUs of one local step move, and the size of their largest input."""
    experiment = cast(Federated, parse_experiment({"dataset": "cifar10", "model": model, "norm": norm}))
    network = make_network(experiment, data, "cpu")
    moved: list[int] = []
    sizes: list[int] = []

    def note(passes: int, inputs: tuple[torch.Tensor, ...]) -> None:
        size = inputs[0].numel() * inputs[0].element_size()
        sizes.append(size)
        moved.append(passes * size)

    for module in network.modules():
        passes = RELU_PASSES if isinstance(module, Relu) else NORM_PASSES
        if isinstance(module, Relu) or type(module).__module__ == norm_layers.__name__:
            module.register_forward_pre_hook(lambda _, inputs, passes=passes: note(passes, inputs))
    network(torch.zeros(BATCH, 3, 32, 32))
    return sum(moved), max(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds, after two warm-up rounds")
    parser.add_argument("--norms", default="", help="comma-separated names; default: all")
    arguments = parser.parse_args()
    sites = tuple(MODELS.parse(arguments.model).sites((3, 32, 32)))
    norms = [NORMS.parse(name) for name in NORMS.classes]
    # With a norm in lock step all clients are one stack, and this is the loop.
    fitting = [norm.name for norm in norms if not norm.problem(sites) and not norm.lock_step]
    names = arguments.norms.split(",") if arguments.norms else fitting
    torch.set_num_threads(1)
    data = random_data((3, 32, 32), 10, train=1000)
    trainers: dict[str, Trainer] = {}
    for name in ["none", *names]:
        experiment = parse_experiment(
            {"dataset": "cifar10", "model": arguments.model, "norm": name, "partition": "iid", "clients": 1, "E": STEPS}
        )
        trainers[name] = trainer_of(cast(Federated, experiment), data, "cpu", executor="loop")
    moved = {name: traffic(arguments.model, name, data) for name in trainers}
    largest = max(size for _, size in moved.values())
    source, target = torch.rand(2, largest // 4)
    copies: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(arguments.rounds + 2):
        for name, trainer in trainers.items():
            once = cpu_seconds(trainer.step) / STEPS
            if number >= 2:
                seconds[name].append(once)
        copies.append(cpu_seconds(lambda: [target.copy_(source) for _ in range(STEPS)]) / STEPS)
    rate = 2 * largest / statistics.median(copies)  # a copy reads and writes
    print(machine_line("torch"))
    print(f"{arguments.model}, batch 32, loop executor, one thread, n = {arguments.rounds} rounds of {STEPS} steps")
    print(f"a copy of {largest / 1e6:.1f} MB moves {rate / 1e9:.1f} GB/s")
    print(f"{'norm':16} {'ms a step':>9}  {'relative to none (min to max)':30} {'added ms':>8}  of which traffic")
    for name, spent in seconds.items():
        ratio = Spread.of_ratios(spent, seconds["none"])
        added = statistics.median(spent) - statistics.median(seconds["none"])
        explained = (moved[name][0] - moved["none"][0]) / rate
        shown = f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})"
        line = f"{name:16} {1000 * statistics.median(spent):9.1f}  {shown:30}"
        print(line + (f" {1000 * added:8.1f}  {1000 * explained:.1f} ms" if name != "none" else ""))


if __name__ == "__main__":
    main()
