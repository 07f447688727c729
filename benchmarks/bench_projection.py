"""Project the time of the label-skew paper's trainings: 10,000 rounds with an evaluation every 100.

    uv run python benchmarks/bench_projection.py [--workloads digits,cifar10,resnet18] [--device cuda] [--repeats 5]

For each workload of ``flbench bench``, the script times some rounds and evaluations in turns and projects the total
time, for one run and for a full stack of runs. On a GPU it does this in fp32, tf32 and bf16, and reports the peak
memory that torch reserved. It adds ResNet-18 with 200 clients and, with cifar10, all of Table 10 in tf32, in the
groups of runs that train together.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

import torch
from processes import machine

from flbench.bench.projection import ROUNDS, Projection, project
from flbench.bench.workloads import WORKLOADS, data_for
from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Data
from flbench.engine.setup import matmul_precision_restored, runs_worth_fusing
from flbench.sweeps import load_sweep
from flbench.worker import group_key

PRECISIONS = {"cpu": ("fp32",), "cuda": ("fp32", "tf32", "bf16")}

TABLE10 = Path(__file__).parents[1] / "sweeps" / "paper" / "table10.yaml"


def table10_groups(precision: str) -> Iterator[tuple[str, list[Federated]]]:
    """Return the runs of Table 10 that train together, with a name for each group."""
    runs = [parse_experiment({**run.to_json(), "precision": precision}) for run in load_sweep(TABLE10).experiments]
    kinds = {run.run_id: group_key(run.to_json()) for run in runs}
    for _, group in groupby(sorted(runs, key=lambda run: kinds[run.run_id]), key=lambda run: kinds[run.run_id]):
        together = cast(list[Federated], list(group))
        first = together[0]
        yield f"{first.method.label()}, {first.norm.label()}, E={first.local_steps}", together


def show(what: str, group: Sequence[Federated], data: Data, device: str, repeats: int) -> Projection:
    done = project(group, data, device, repeats)
    spread, evaluation_ms = done.round_s.times(1000), 1000 * done.evaluation_s.median
    memory = "" if done.peak_bytes is None else f", {done.peak_bytes / 2**30:.3g} GiB"
    print(
        f"{what}, {group[0].precision}, {done.runs} runs: a round of all {spread.median:.3g} ms "
        f"({spread.min:.3g} to {spread.max:.3g}, n={spread.n}), an evaluation {evaluation_ms:.3g} ms; "
        f"{ROUNDS:,} rounds: {done.seconds / done.runs:,.0f} s a run{memory}",
        flush=True,
    )
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default="digits,cifar10,resnet18", help="comma-separated names")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $FLBENCH_DATA")
    arguments = parser.parse_args()
    device, repeats = arguments.device, arguments.repeats
    print(machine("torch"))
    if device == "cuda":
        print(torch.cuda.get_device_name())
    with matmul_precision_restored():
        for name in arguments.workloads.split(","):
            workload = WORKLOADS[name]
            experiment = workload.experiment(device)
            data = data_for(experiment, arguments.data)
            fused = runs_worth_fusing(experiment, data, device=device, executor="auto")
            for precision in PRECISIONS[device]:
                for runs in sorted({1, fused}):
                    group = [workload.experiment(device, seed=seed, precision=precision) for seed in range(runs)]
                    show(name, group, data, device, repeats)
            if device == "cuda" and name == "resnet18":
                show(
                    "resnet18, 200 clients",
                    [workload.experiment(device, clients=200, precision="bf16")],
                    data,
                    device,
                    2,
                )
            if device == "cuda" and name == "cifar10":
                done = [show(f"Table 10: {what}", group, data, device, 2) for what, group in table10_groups("tf32")]
                minutes = sum(each.seconds for each in done) / 60
                print(f"Table 10 in all: {sum(each.runs for each in done)} runs in {minutes:.1f} minutes on this GPU")


if __name__ == "__main__":
    main()
