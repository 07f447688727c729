"""Measure the peak memory of a round with many clients of a large model on a CPU.

    python -m benchmarks.memory [--clients 200] [--model resnet18] [--methods fedavg,scaffold]

Each method trains one round (E = 1, batches of 32 random 32x32 images) in a process of its own, with the executor that
``auto`` selects; the result is that process's peak memory. The engine trains a few clients at a time and sums them in
order, so only a method's state per client (SCAFFOLD: a copy of the weights) grows with the number of clients.
"""

from __future__ import annotations

import os
import sys
import time

import torch

from benchmarks.common import experiment_of, parser_of
from benchmarks.processes import cost_of, machine_line
from flbench.data.random_images import random_data
from flbench.engine.setup import make_trainer

LIMIT_GB = 24.0


def train(method: str, model: str, clients: int, threads: int) -> None:
    """Train one round; print its seconds and the executor."""
    torch.set_num_threads(1)
    data = random_data((3, 32, 32), 10, train=64 * clients)
    experiment = experiment_of(f"dataset=cifar10 model={model} method={method} clients={clients} E=1")
    trainer, numerics = make_trainer(experiment, data, device="cpu", executor="auto", pool=threads)
    start = time.perf_counter()
    trainer.step()
    print(f"a round of {time.perf_counter() - start:.0f} s, {numerics.executor}")


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--methods", default="fedavg,scaffold", help="comma-separated names")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--here", action="store_true", help="train in this process; used by the script itself")
    given = parser.parse_args()
    if given.here:
        return train(given.methods, given.model, given.clients, given.threads)
    peaks = []
    for method in given.methods.split(","):
        size = [f"--clients={given.clients}", f"--model={given.model}", f"--threads={given.threads}"]
        cost = cost_of([sys.executable, "-m", "benchmarks.memory", "--here", f"--methods={method}", *size])
        peaks.append(cost.memory * 2**20 / 1e9)
        what = f"{method}, {given.clients} clients x {given.model}, {given.threads} threads"
        print(f"{what}: peak {peaks[-1]:.2f} GB (limit {LIMIT_GB:.0f} GB), {cost.out.strip()}")
    print(machine_line("torch"))
    sys.exit(max(peaks) >= LIMIT_GB)


if __name__ == "__main__":
    main()
