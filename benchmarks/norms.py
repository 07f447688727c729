"""Measure the CPU time of a client's local step with each normalization, relative to none.

    python -m benchmarks.norms [--model cnn] [--repeats 15] [--norms ln,gn]

Loop executor, one thread, batches of 32 random images of 32x32 pixels with flip and crop, float32; a round is one
client with E = 5 steps. All norms take turns, and ratios are taken within a turn, so that other load slows all of them
equally. CPU time is measured instead of wall time, so waiting on a busy machine does not count.

The last columns show how much of the added time is memory traffic. Normalizing reads its input twice and writes once;
its backward pass reads input and gradient twice and writes once. A ReLU reads and writes once; its backward pass reads
two tensors and writes one. (With a layerwise norm the ReLU cannot move behind the pooling, where it would process a
quarter of the pixels.) The bytes are divided by the rate at which this machine copies tensors of that size in the same
turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.common import ending_in_messages, experiment_of, parser_of, show
from benchmarks.processes import machine_line
from flbench.bench.timing import Spread, Variant, alone, take_turns, trainer_of
from flbench.data.arrays import Data
from flbench.data.random_images import random_data
from flbench.engine.setup import make_network
from flbench.models import norm_layers
from flbench.models.layers import Relu
from flbench.registry import MODELS, NORMS

STEPS = 5
BATCH = 32

#: Passes through its input that a layer makes, forward and backward together.
NORM_PASSES, RELU_PASSES = 8, 5


def traffic(setting: str, data: Data) -> tuple[int, int]:
    """Return the bytes that the norms and ReLUs of one local step move, and the size of their largest input."""
    network = make_network(experiment_of(setting), data, "cpu")
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


def fitting(model: str) -> list[str]:
    """Return the norms that a model can have and the loop can train."""
    sites = tuple(MODELS.parse(model).sites((3, 32, 32)))
    norms = [NORMS.parse(name) for name in NORMS.classes]
    # With a norm in lock step all clients are one stack, and this is the loop.
    return [norm.name for norm in norms if not norm.problem(sites) and not norm.lock_step]


def copying(size: int) -> Callable[[], object]:
    """Return a function that copies ``size`` bytes once for each step of a round."""
    source, target = torch.rand(2, size // 4)
    return lambda: [target.copy_(source) for _ in range(STEPS)]


def measure(model: str, names: list[str], repeats: int) -> None:
    """Print the table of a model."""
    data = random_data((3, 32, 32), 10, train=1000)
    settings = {name: f"dataset=cifar10 model={model} norm={name} clients=1 E={STEPS}" for name in ["none", *names]}
    moved = {name: traffic(setting, data) for name, setting in settings.items()}
    largest = max(size for _, size in moved.values())
    variants = [
        alone(name, trainer_of(experiment_of(setting), data, "cpu", executor="loop"), rounds=1)
        for name, setting in settings.items()
    ]
    copy = Variant("a copy", copying(largest), rounds=1)
    seconds = take_turns([*variants, copy], repeats=repeats, clock=time.process_time)
    copied = Spread.of(seconds.pop("a copy"))
    rate = 2 * largest * STEPS / copied.median  # a copy reads and writes
    ms = {name: 1000 / STEPS * Spread.of(own).median for name, own in seconds.items()}
    print(machine_line("torch"))
    print(f"{model}, batch {BATCH}, loop executor, one thread, n = {repeats} turns of {STEPS} steps")
    print(f"a copy of {largest / 1e6:.1f} MB moves {rate / 1e9:.1f} GB/s")
    show(
        [
            {
                "norm": name,
                "ms a step": ms[name],
                "relative to none": Spread.of_ratios(own, seconds["none"]),
                "added ms": ms[name] - ms["none"],
                "of which traffic": 1000 * (moved[name][0] - moved["none"][0]) / rate,
            }
            for name, own in seconds.items()
        ]
    )


if __name__ == "__main__":
    parser = parser_of(__doc__ or "")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--repeats", type=int, default=15, help="counted rounds, after a warm-up")
    parser.add_argument("--norms", help="comma-separated names; default: all")
    arguments = parser.parse_args()
    with ending_in_messages():
        names = arguments.norms.split(",") if arguments.norms else fitting(arguments.model)
        measure(arguments.model, names, arguments.repeats)
