"""Synthetic sweeps with probes, whose measurements are a function of the experiment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.papers.label_skew.chapter import Synthesis
from flbench.papers.label_skew.supplement import LabelSkewSupplement
from flbench.report.board import Leaderboard
from flbench.report.runs import Collection
from tests.papers.in_memory import Memory
from tests.report.stores import experiment, leaderboard_of

METHODS = ("fedavg", "fedprox", "fedlc", "moon", "fedavgm", "scaffold", "fedyogi")
NORMS = ("none", "fn", "ln", "gn", "rms", "bn", "ln-static")
RATES = (0.01, 0.1, 1.0)
PARTITIONS = ("classes:1", "iid")


@dataclass(frozen=True)
class Measured:
    """What a run records at its end, and before its first round."""

    acc: float
    rank: float = 2.0
    norm: float = 1.0
    sharp: float = 1.0
    share: float = 0.5
    initial_norm: float = 1.0
    initial_sharp: float = 1.0
    overfit: tuple[float, float] | None = None

    def end(self) -> dict[str, Any]:
        """Return the probes of the last record."""
        more = {} if self.overfit is None else {"overfit": _overfit(*self.overfit)}
        return {**_probes(self.norm, self.share, self.rank, self.sharp), "drift": {"agreement": 0.5}, **more}

    def start(self) -> dict[str, Any]:
        """Return the probes of round 0."""
        return _probes(self.initial_norm, 0.4, 1.5, self.initial_sharp)


def _probes(norm: float, share: float, rank: float, sharp: float) -> dict[str, Any]:
    singular = [10.0, 1.0, 0.1]
    features = {"norm": norm, "first_share": share, "rank": rank, "singular": singular, "head_norms": [norm, 1.0]}
    return {"features": features, "sharpness": {"lambda_max": sharp, "local": [sharp, 2 * sharp]}}


def _overfit(before: float, after: float) -> dict[str, Any]:
    return {"before": [before] * 3, "after": [[1.0, after, after]] * 2, "mean_before": before, "mean_after": after}


Measure = Callable[[Any], Measured | None]


def probed_runs(
    measure: Measure,
    *,
    methods: Sequence[Any] = METHODS,
    norms: Sequence[str] = NORMS,
    partitions: Sequence[str] = PARTITIONS[:1],
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0,),
    at: Sequence[int] = (0, 10, 20),
) -> Collection:
    """One run of every combination; ``measure`` returns what an experiment records, or None where it diverges."""
    memory = Memory()
    for method, norm, partition, lr, seed in itertools.product(methods, norms, partitions, rates, seeds):
        request = experiment(
            method=method, norm=norm, partition=partition, lr=lr, seed=seed, probes={"features": 10, "overfit": 20}
        )
        finish(memory, request, measure(request), at)
    return memory.collection()


def finish(memory: Memory, request: Any, measured: Measured | None, at: Sequence[int] = (0, 10, 20)) -> None:
    """A run that is done, or that diverged."""
    if measured is None:
        memory.finish(request, [{"round": 0, "acc": 0.1}], status="diverged")
        return
    start = {"acc": 0.1, "probes": measured.start()}
    end = {"acc": measured.acc, "recall": [measured.acc] * 10, "probes": measured.end()}
    memory.finish(request, [{"round": one, **(end if one else start)} for one in at])


def board(collection: Collection, **options: Any) -> Leaderboard:
    """Its leaderboard with the synthesis."""
    return leaderboard_of(collection, why=True, title="why", command="flbench report --why", **options)


def syntheses_of(board: Leaderboard) -> tuple[Synthesis, ...]:
    """The syntheses of a leaderboard."""
    supplement = board.supplement(LabelSkewSupplement)
    assert supplement is not None
    return supplement.why or ()
