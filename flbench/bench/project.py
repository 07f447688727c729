"""What a long training would take, from some measured rounds and evaluations of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, cast

import torch

from flbench.bench.measure import Note, Spread, Variant, take_turns
from flbench.config import Federated, Precision
from flbench.data.arrays import Data
from flbench.engine.fused import step_together
from flbench.engine.rounds import FederatedTrainer
from flbench.engine.setup import make_trainer

#: The label-skew paper's experiments: so many rounds, and so many from one evaluation to the next.
ROUNDS = 10_000
EVERY = 100

#: Rounds in a turn: enough that the host runs ahead of a GPU.
TURN = 10

#: Table 10 of that paper: its rows, whose cells differ in these partitions and numbers of local steps.
TABLE10_ROWS: tuple[dict[str, Any], ...] = (
    *({"method": "fedavg", "norm": norm} for norm in ("none", "fn", "ln")),
    {"method": "fedprox"},
    {"method": {"name": "scaffold", "variant": "text"}},
    {"method": "fedlc"},
    {"method": {"name": "feddecorr", "variant": "text"}},
    {"method": "fedrs"},
    {"method": "fedyogi"},
)
TABLE10_PARTITIONS = ("classes:1", "classes:2", "dirichlet:0.1")
TABLE10_STEPS = (1, 10, 20)


@dataclass(frozen=True)
class Projection:
    """10,000 rounds of runs that are trained together, with 100 evaluations of each.

    Attributes:
        what: in words. ``runs``: trained together.
        round_s: seconds of a round of all runs. ``evaluation_s``: of an evaluation of one.
        seconds: of the whole, for all runs.
        peak_bytes: most memory that torch took of the GPU; None on a CPU.
    """

    what: str
    precision: str
    runs: int
    round_s: Spread
    evaluation_s: Spread
    seconds: float
    peak_bytes: int | None


def project(
    what: str, group: Sequence[Federated], data: Data, *, device: str, executor: str, repeats: int, note: Note
) -> Projection:
    """Measure some rounds and evaluations of runs that may be trained together."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    make = partial(make_trainer, data=data, device=device, executor=cast(Any, executor), pool=1)
    trainers = [cast(FederatedTrainer, make(experiment)[0]) for experiment in group]
    precision = group[0].precision
    if len(trainers) > 1:
        train: Any = partial(step_together, trainers, [False] * len(trainers), wait=False)
    else:
        train = partial(trainers[0].step, wait=False)
    rounds = Variant("a round", train, precision, rounds=TURN if device == "cuda" else 1)
    evaluation = Variant("an evaluation", trainers[0].evaluate, precision)
    seconds = take_turns([rounds, evaluation], repeats=repeats, note=lambda _, done, total: note(what, done, total))
    of_round, of_evaluation = (Spread.of(seconds[variant.name]) for variant in (rounds, evaluation))
    return Projection(
        what=what,
        precision=precision,
        runs=len(group),
        round_s=of_round,
        evaluation_s=of_evaluation,
        seconds=ROUNDS * of_round.median + ROUNDS // EVERY * len(group) * of_evaluation.median,
        peak_bytes=torch.cuda.max_memory_reserved() if device == "cuda" else None,
    )


def table10_groups(experiment: Federated, precision: Precision) -> Iterator[tuple[str, list[Federated]]]:
    """The groups in which Table 10 is trained, each with its name: the partitions of a row and a number of steps."""
    for row, steps in product(TABLE10_ROWS, TABLE10_STEPS):
        common = {**row, "local_steps": steps, "precision": precision}
        changed = [_changed(experiment, {**common, "partition": partition}) for partition in TABLE10_PARTITIONS]
        method, norm = changed[0].method.label(), changed[0].norm.label()
        yield f"{method}, {norm}, E={steps}", changed


def _changed(experiment: Federated, fields: dict[str, Any]) -> Federated:
    from flbench.config import parse_experiment

    return cast(Federated, parse_experiment({**experiment.to_json(), "norm": "none", **fields}))
