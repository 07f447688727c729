"""Measure which operators a plain local step of a network spends its time in: what no engine on top of torch can save.

    python -m benchmarks.operators [lenet|cifar10 ...] [--repeats 7] [--steps 50]

One torch thread, one client, images in memory. In each of ``--repeats`` turns the steps are timed, and then traced for
the share of each operator in their time (median, min to max).
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import measure_parts, options, show
from benchmarks.workloads import Workload, data_of
from flbench.bench.loop import PlainLoop
from flbench.bench.timing import Spread
from flbench.cli.numbers import spread_text

#: Operators with a smaller share are left out.
FEWEST_PERCENT = 2.0


def local_step(workload: Workload, root: Path | None) -> Callable[[], None]:
    """Return a local step of SGD as a user of torch writes it."""
    experiment = workload.experiment(norm="none", method="fedavg", seed=0)
    data = data_of(experiment, root)
    network = PlainLoop(experiment, data).network
    optimizer = torch.optim.SGD(network.parameters(), lr=experiment.lr)
    images = torch.from_numpy(data.train.images[: experiment.batch_size].copy()).float() / 255
    labels = torch.from_numpy(data.train.labels[: experiment.batch_size].copy())

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images)[1], labels).backward()
        optimizer.step()

    return step


def measure(workload: Workload, arguments: argparse.Namespace) -> None:
    """Print the table of a workload."""
    step, milliseconds, shares = local_step(workload, arguments.data), [], defaultdict(list)
    for turn in range(arguments.repeats + 1):
        start = time.perf_counter()
        for _ in range(arguments.steps):
            step()
        spent = 1000 * (time.perf_counter() - start) / arguments.steps
        with profile(activities=[ProfilerActivity.CPU]) as traced:
            for _ in range(arguments.steps):
                step()
        own = {one.key: one.self_cpu_time_total for one in traced.key_averages()}
        if turn:  # the first one warms up
            milliseconds.append(spent)
            for name, time_of in own.items():
                shares[name].append(100 * time_of / sum(own.values()))
    print(f"\n{workload.what}: {spread_text(Spread.of(milliseconds))} ms a step")
    found = sorted(((name, Spread.of(own)) for name, own in shares.items()), key=lambda one: -one[1].median)
    show([{"operator": name, "% of the time": share} for name, share in found if share.median >= FEWEST_PERCENT])


def main() -> None:
    parser = options(__doc__ or "", "lenet", repeats=7)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    measure_parts(measure, arguments, f"{arguments.steps} steps")


if __name__ == "__main__":
    main()
