"""Compare a whole sweep with the same runs, one at a time, in a plain PyTorch loop.

    python -m benchmarks.sweep [sweeps/quickstart.yaml] [--workers 2] [--plain-rounds 20] [--repeats 3]

The sweep is ``flbench sweep`` as a process in a fresh store, with start-up, data, planning, claims, evaluations,
checkpoints and results. The plain loops train the same experiments (the same networks, normalizations and partitions)
one after another, with as many torch threads as the sweep has workers. They train ``--plain-rounds`` rounds of each
experiment, and the rest is projected. They evaluate as often as the sweep and average as FedAvg does, whatever the
method, which is slightly less work.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch

from benchmarks.common import parser_of, show
from benchmarks.loader import loaders
from benchmarks.processes import flbench, machine_line
from flbench.bench.loop import PlainLoop, Source, from_memory
from flbench.bench.timing import Spread
from flbench.config import Federated
from flbench.data.datasets import Dataset, load
from flbench.sweeps import load_sweep

SOURCES: Mapping[str, Source] = {"memory": from_memory, "loader": loaders}


def plain_seconds(experiment: Federated, source: Source, rounds: int) -> float:
    """Return the projected seconds of an experiment, with its evaluations."""
    data = load(cast(Dataset, experiment.dataset))
    loop = PlainLoop(experiment, data, source=source)
    loop.round()  # warm-up
    start = time.perf_counter()
    for _ in range(rounds):
        loop.round()
    trained = time.perf_counter() - start
    start = time.perf_counter()
    network = loop.network.eval()
    with torch.no_grad():
        images = torch.from_numpy(data.test.images.copy()).float() / data.white
        hits = network(images)[1].argmax(-1) == torch.from_numpy(data.test.labels.copy())
    hits.double().mean().item()
    evaluated = time.perf_counter() - start
    return trained / rounds * experiment.rounds + evaluated * len(experiment.evaluated_rounds())


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("spec", type=Path, nargs="?", default=Path("sweeps/quickstart.yaml"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plain-rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    experiments = [cast(Federated, experiment) for experiment in load_sweep(arguments.spec).experiments]
    torch.set_num_threads(arguments.workers)
    ours: list[float] = []
    plain: dict[str, list[float]] = {source: [] for source in SOURCES}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as store:
            ours.append(flbench("sweep", arguments.spec, "--store", store, "--workers", arguments.workers).wall)
        for name, source in SOURCES.items():
            one_by_one = [plain_seconds(experiment, source, arguments.plain_rounds) for experiment in experiments]
            plain[name].append(sum(one_by_one))
    print(f"{arguments.spec}: {len(experiments)} runs; n = {arguments.repeats}, medians (min to max)")
    named = {f"flbench sweep, {arguments.workers} workers": ours}
    named |= {f"plain loop, {name}, one run at a time": seconds for name, seconds in plain.items()}
    show(
        [
            {"trained by": name, "s": Spread.of(own), "times as long as the sweep": Spread.of_ratios(own, ours)}
            for name, own in named.items()
        ]
    )
    print(machine_line("torch"))


if __name__ == "__main__":
    main()
