"""Project the time of long trainings from a few measured rounds and evaluations."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from flbench.bench.measure import Note, Spread, Variant, take_turns
from flbench.choices import UsedDevice
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.engine.federated import step_together
from flbench.engine.setup import make_trainer

#: Rounds of the training that is projected, and the rounds between two of its evaluations.
ROUNDS, EVERY = 10_000, 100

#: Rounds in a turn: enough for the host to queue work ahead of a GPU.
TURN = {"cpu": 1, "cuda": 10}


@dataclass(frozen=True)
class Projection:
    """The projected ``seconds`` of runs that train together, and the times behind the projection."""

    runs: int
    round_s: Spread
    evaluation_s: Spread
    seconds: float
    peak_bytes: int | None


def project(
    group: Sequence[Federated],
    data: Data,
    device: UsedDevice,
    repeats: int,
    *,
    turn: int | None = None,
    note: Note = lambda *_: None,
) -> Projection:
    """Time some rounds of all runs of a group, and some evaluations of its first run.

    Args:
        group: runs that can train together.
        data: their data set.
        device: where they train.
        repeats: turns of both.
        turn: rounds in a turn; None: as many as ``TURN`` has for the device.
        note: called before every turn.

    Returns:
        Medians, and the time of all runs of the group for ``ROUNDS`` rounds with an evaluation of each every ``EVERY``.
    """
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainers: list[Any] = [make_trainer(run, data, device=device, executor="auto", pool=1)[0] for run in group]
    train: Callable[[], object] = partial(trainers[0].step, wait=False)
    if len(trainers) > 1:
        train = partial(step_together, trainers, [False] * len(trainers), wait=False)
    rounds = Variant("a round", train, group[0].precision, rounds=turn or TURN[device])
    evaluation = Variant("an evaluation", trainers[0].evaluate, group[0].precision)
    seconds = take_turns([rounds, evaluation], repeats=repeats, note=note)
    round_s, evaluation_s = (Spread.of(seconds[variant.name]) for variant in (rounds, evaluation))
    return Projection(
        runs=len(group),
        round_s=round_s,
        evaluation_s=evaluation_s,
        seconds=ROUNDS * round_s.median + ROUNDS // EVERY * len(group) * evaluation_s.median,
        peak_bytes=torch.cuda.max_memory_reserved() if device == "cuda" else None,
    )
