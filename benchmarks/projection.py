"""Project the time of the label-skew paper's trainings: 10,000 rounds with an evaluation every 100.

    python -m benchmarks.projection [digits cifar10 resnet18 ...] [--device cuda] [--repeats 5] [--json]

Some rounds and evaluations are timed in turns, and the total time is projected, for one run and for a full stack of
runs. On a GPU this is done in fp32, tf32 and bf16, with the peak memory that torch reserved. There ResNet-18 is also
projected with 200 clients, and with cifar10 all of Table 10 in tf32, in the groups of runs that train together.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import cast

import torch

from benchmarks.common import Row, Settings, engine_options, reported
from benchmarks.workloads import Workload
from flbench.bench.timing import Note, Spread, Variant, take_turns, trainer_of
from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Data
from flbench.engine.federated import step_together
from flbench.engine.setup import matmul_precision_restored, runs_worth_fusing
from flbench.sweeps import load_sweep
from flbench.worker import group_key

#: Rounds of the training that is projected, and the rounds between two of its evaluations.
ROUNDS, EVERY = 10_000, 100

#: Precisions on each device.
PRECISIONS = {"cpu": ("fp32",), "cuda": ("fp32", "tf32", "bf16")}

TABLE10 = Path(__file__).parents[1] / "sweeps" / "paper" / "table10.yaml"


@dataclass(frozen=True)
class Projection:
    """The projected ``seconds`` of runs that train together, and the times behind the projection."""

    runs: int
    round_s: Spread
    evaluation_s: Spread
    seconds: float
    peak_bytes: int | None


def project(
    group: Sequence[Federated], data: Data, settings: Settings, *, turn: int, note: Note = lambda *_: None
) -> Projection:
    """Time some rounds of all runs of a group, and some evaluations of its first run.

    Args:
        group: runs that can train together.
        data: their data set.
        settings: device and repeats.
        turn: rounds in a turn: on a GPU enough for the host to queue work ahead.
        note: called before every turn.

    Returns:
        Medians, and the time of all runs of the group for ``ROUNDS`` rounds with an evaluation of each every ``EVERY``.
    """
    if settings.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainers = [trainer_of(run, data, settings.device) for run in group]
    train: Callable[[], object] = partial(trainers[0].step, wait=False)
    if len(trainers) > 1:
        train = partial(step_together, trainers, [False] * len(trainers), wait=False)
    evaluation = Variant("an evaluation", trainers[0].evaluate, rounds=1)
    seconds = take_turns([Variant("a round", train, rounds=turn), evaluation], repeats=settings.repeats, note=note)
    round_s, evaluation_s = map(Spread.of, seconds.values())
    return Projection(
        runs=len(group),
        round_s=round_s,
        evaluation_s=evaluation_s,
        seconds=ROUNDS * round_s.median + ROUNDS // EVERY * len(group) * evaluation_s.median,
        peak_bytes=torch.cuda.max_memory_reserved() if settings.device == "cuda" else None,
    )


def table10_groups(precision: str) -> Iterator[tuple[str, list[Federated]]]:
    """Return the runs of Table 10 that train together, with a name for each group."""
    runs = [parse_experiment({**run.to_json(), "precision": precision}) for run in load_sweep(TABLE10).experiments]
    kinds = {run.run_id: group_key(run.to_json()) for run in runs}
    for _, group in groupby(sorted(runs, key=lambda run: kinds[run.run_id]), key=lambda run: kinds[run.run_id]):
        together = cast(list[Federated], list(group))
        first = together[0]
        yield f"{first.method.label()}, {first.norm.label()}, E={first.local_steps}", together


def groups(workload: Workload, settings: Settings) -> Iterator[tuple[str, list[Federated]]]:
    """Return all groups of runs that are projected for a workload, with their names."""
    on_gpu = settings.device == "cuda"
    first, data = settings.experiment(workload), settings.data_of(workload)
    fused = settings.fuse or runs_worth_fusing(first, data, device=settings.device, executor="auto")
    for precision in PRECISIONS[settings.device]:
        for runs in sorted({1, fused}):
            own = [settings.experiment(workload, seed=seed, precision=precision) for seed in range(runs)]
            yield workload.name, own
    if on_gpu and workload.name == "resnet18":
        yield "resnet18, 200 clients", [settings.experiment(workload, clients=200, precision="bf16")]
    if on_gpu and workload.name == "cifar10":
        yield from ((f"Table 10: {name}", group) for name, group in table10_groups("tf32"))


def row(name: str, precision: str, done: Projection) -> Row:
    """Return a projection as a row of a table; ``s a run`` is the projected time."""
    memory = {} if done.peak_bytes is None else {"GiB": done.peak_bytes / 2**30}
    ms, evaluation = done.round_s.times(1000), done.evaluation_s.times(1000)
    times = {"ms a round of all": ms, "ms an evaluation": evaluation, "s a run": done.seconds / done.runs}
    return {"what": name, "precision": precision, "runs": done.runs, **times, **memory}


def main() -> None:
    arguments = engine_options(__doc__ or "", "digits", "cifar10", "resnet18").parse_args()
    settings = Settings.of(arguments)
    with reported("projections", settings, as_json=arguments.json) as report, matmul_precision_restored():
        for workload in arguments.workloads:
            data, turn = settings.data_of(workload), settings.rounds or {"cpu": 1, "cuda": 10}[settings.device]
            found = [
                (name, group[0].precision, project(group, data, settings, turn=turn))
                for name, group in groups(workload, settings)
            ]
            rows = [row(*one) for one in found]
            table10 = [done for name, _, done in found if name.startswith("Table 10")]
            title = f"{workload.what}, {ROUNDS:,} rounds"
            if table10:
                minutes = sum(done.seconds for done in table10) / 60
                title += f"; Table 10 in all: {sum(done.runs for done in table10)} runs in {minutes:.1f} minutes"
            report(title, {"workload": workload.name, "rows": rows})


if __name__ == "__main__":
    main()
