"""Measure the peak memory of a round with many clients of a large model on a CPU.

    python -m benchmarks.memory [--clients 200] [--model resnet18] [--methods fedavg,scaffold]

Each method trains one round (E = 1, batches of 32 random 32x32 images) in a process of its own, with the executor that
``auto`` selects; the result is that process's peak memory. The engine trains a few clients at a time and sums them in
order, so only a method's state per client (SCAFFOLD: a copy of the weights) grows with the number of clients.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from typing import cast

from benchmarks.processes import machine_line

LIMIT_GB = 24.0


def train(method: str, model: str, clients: int, threads: int) -> None:
    """Train one round; print the process's peak in GB and the seconds of the round."""
    import torch

    from flbench.config import Federated, parse_experiment
    from flbench.data.random_images import random_data
    from flbench.engine.setup import make_trainer

    torch.set_num_threads(1)
    data = random_data((3, 32, 32), 10, train=64 * clients)
    fields = {"dataset": "cifar10", "model": model, "method": method, "partition": "iid", "clients": clients, "E": 1}
    trainer, numerics = make_trainer(
        cast(Federated, parse_experiment(fields)), data, device="cpu", executor="auto", pool=threads
    )
    start = time.perf_counter()
    trainer.step()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"{peak / 1e9:.2f} {seconds:.0f} {numerics.executor}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--methods", default="fedavg,scaffold", help="comma-separated names")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--here", action="store_true", help="train in this process; used by the script itself")
    arguments = parser.parse_args()
    if arguments.here:
        return train(arguments.methods, arguments.model, arguments.clients, arguments.threads)
    fits = True
    for method in arguments.methods.split(","):
        size = [f"--clients={arguments.clients}", f"--model={arguments.model}", f"--threads={arguments.threads}"]
        command = [sys.executable, "-m", "benchmarks.memory", "--here", f"--methods={method}", *size]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peak, seconds, executor = answer.split()
        fits &= float(peak) < LIMIT_GB
        what = f"{method}, {arguments.clients} clients x {arguments.model}, {executor}, {arguments.threads} threads"
        print(f"{what}: peak {peak} GB, a round {seconds} s (limit {LIMIT_GB:.0f} GB)")
    print(machine_line("torch"))
    sys.exit(not fits)


if __name__ == "__main__":
    main()
