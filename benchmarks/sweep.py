"""Compare a whole sweep with the same runs, one at a time, in a plain PyTorch loop.

    python -m benchmarks.sweep [sweeps/quickstart.yaml] [--workers 2] [--plain-rounds 20] [--repeats 3]

The sweep is ``flbench sweep`` as a process in a fresh store, with start-up, data, planning, claims, evaluations,
checkpoints and results. The plain loops train the same experiments (the same networks, normalizations and partitions)
one after another, with as many torch threads as the sweep has workers. They train ``--plain-rounds`` rounds of each
experiment, and the rest is projected. They evaluate as often as the sweep and average as FedAvg does, whatever the
method, which is slightly less work.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch

from benchmarks.loader import loaders
from benchmarks.processes import machine_line, seconds_of
from flbench.bench.loop import PlainLoop, Source, from_memory
from flbench.bench.timing import Spread
from flbench.config import Federated
from flbench.data.datasets import Dataset, load
from flbench.sweeps import load_sweep

SOURCES: Mapping[str, Source] = {"memory": from_memory, "loader": loaders}


def plain_seconds(experiments: Sequence[Federated], source: Source, rounds: int, threads: int) -> float:
    """Return the projected seconds of all experiments, one after another."""
    torch.set_num_threads(threads)
    return sum(_one(experiment, source, rounds) for experiment in experiments)


def _one(experiment: Federated, source: Source, rounds: int) -> float:
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


def _spread(values: Sequence[float]) -> str:
    spread = Spread.of(values)
    return f"{spread.median:.1f} ({spread.min:.1f} to {spread.max:.1f}, n={spread.n})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", type=Path, nargs="?", default=Path("sweeps/quickstart.yaml"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plain-rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    experiments = [cast(Federated, experiment) for experiment in load_sweep(arguments.spec).experiments]
    ours: list[float] = []
    plain: dict[str, list[float]] = {source: [] for source in SOURCES}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as store:
            words = ["sweep", str(arguments.spec), "--store", store, "--workers", str(arguments.workers)]
            ((wall, _),) = seconds_of(words, 1, warm_ups=0)
        ours.append(wall)
        for name, source in SOURCES.items():
            plain[name].append(plain_seconds(experiments, source, arguments.plain_rounds, arguments.workers))
    print(f"{arguments.spec}: {len(experiments)} runs, {arguments.workers} workers: {_spread(ours)} s")
    for name, seconds in plain.items():
        ratios = [of_plain / of_sweep for of_plain, of_sweep in zip(seconds, ours, strict=True)]
        print(f"plain loop, {name}, one run at a time: {_spread(seconds)} s, {_spread(ratios)} times as long")
    print(machine_line("torch"))


if __name__ == "__main__":
    main()
