"""Project the time of the label-skew paper's trainings: 10,000 rounds with an evaluation every 100.

    python -m benchmarks.projection [cifar10 resnet18 ...] [FIELD=VALUE ...] [--device cuda] [--repeats 5] [--json]

Some rounds and evaluations are timed in turns, and the total time is projected, for one run and for a full stack of
runs. On a GPU this is done in fp32, tf32 and bf16, with the peak memory that torch reserved. There cifar10 is also
projected for all of Table 10 in tf32, in the groups of runs that train together.
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

from benchmarks.common import Case, Row, measure_each, options
from flbench.bench.timing import Spread, Variant, seeds_of, trainer_of
from flbench.config import Federated, parse_experiment
from flbench.engine.federated import step_together
from flbench.engine.setup import runs_worth_fusing
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

    def row(self, name: str, precision: str) -> Row:
        """Return the projection as a row of a table; ``s a run`` is the projected time."""
        memory = {} if self.peak_bytes is None else {"GiB": self.peak_bytes / 2**30}
        ms, evaluation = self.round_s.times(1000), self.evaluation_s.times(1000)
        times = {"ms a round of all": ms, "ms an evaluation": evaluation, "s a run": self.seconds / self.runs}
        return {"what": name, "precision": precision, "runs": self.runs, **times, **memory}


def project(case: Case, group: Sequence[Federated]) -> Projection:
    """Time some rounds of all runs of a group that can train together, and some evaluations of its first run.

    Returns:
        Medians, and the time of all runs of the group for ``ROUNDS`` rounds with an evaluation of each every ``EVERY``.
    """
    if case.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainers = [trainer_of(run, case.data, case.device) for run in group]
    train: Callable[[], object] = partial(trainers[0].step, wait=False)
    if len(trainers) > 1:
        train = partial(step_together, trainers, [False] * len(trainers), wait=False)
    seconds = case.turns([Variant("a round", train), Variant("an evaluation", trainers[0].evaluate)])
    round_s, evaluation_s = map(Spread.of, seconds.values())
    return Projection(
        runs=len(group),
        round_s=round_s,
        evaluation_s=evaluation_s,
        seconds=ROUNDS * round_s.median + ROUNDS // EVERY * len(group) * evaluation_s.median,
        peak_bytes=torch.cuda.max_memory_reserved() if case.device == "cuda" else None,
    )


def table10_groups(precision: str) -> Iterator[tuple[str, list[Federated]]]:
    """Return the runs of Table 10 that train together, with a name for each group."""
    runs = [parse_experiment({**run.to_json(), "precision": precision}) for run in load_sweep(TABLE10).experiments]
    kinds = {run.run_id: group_key(run.to_json()) for run in runs}
    for _, group in groupby(sorted(runs, key=lambda run: kinds[run.run_id]), key=lambda run: kinds[run.run_id]):
        together = cast(list[Federated], list(group))
        first = together[0]
        yield f"{first.method.label()}, {first.norm.label()}, E={first.local_steps}", together


def groups(case: Case) -> Iterator[tuple[str, list[Federated]]]:
    """Yield all groups of runs that are projected for a workload, with their names."""
    fused = runs_worth_fusing(case.experiment, case.data, device=case.device, executor="auto")
    for precision in PRECISIONS[case.device]:
        for runs in sorted({1, fused}):
            yield case.name, seeds_of(case.changed(precision=precision).experiment, runs)
    if case.device == "cuda" and case.name == "cifar10":
        yield from ((f"Table 10: {name}", group) for name, group in table10_groups("tf32"))


def measure(case: Case) -> list[Row]:
    """Return a row for each group, and below those of Table 10 one for all of its runs."""
    found = [(name, group[0].precision, project(case, group)) for name, group in groups(case)]
    rows = [done.row(name, precision) for name, precision, done in found]
    table10 = [done for name, _, done in found if name.startswith("Table 10")]
    if table10:
        minutes = f"Table 10 in all: {sum(done.seconds for done in table10) / 60:.1f} minutes"
        rows.append({"what": minutes, "precision": "tf32", "runs": sum(done.runs for done in table10)})
    return rows


if __name__ == "__main__":
    measure_each("projections", measure, options(__doc__ or "", "digits", "cifar10").parse_intermixed_args())
