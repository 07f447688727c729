"""Time ways to do the same work in turns within one process, so that other load slows all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from flbench.bench.loop import PlainLoop
from flbench.choices import Executor
from flbench.config import Federated, parse_experiment
from flbench.data.arrays import Data
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.setup import make_trainer, matmul_precision_restored, runs_worth_fusing

#: Seconds of a turn whose rounds are not given, unless one round takes longer.
TURN = 0.15

#: Called before each turn with the variant's name, the turns done and the turns in all.
Note = Callable[[str, int, int], None]

FLBENCH = "flbench"

#: The plain loops with which flbench is compared: neither is the faster one for all networks.
PLAIN, CHANNELS_LAST = "plain loop", "plain loop, channels last"


@dataclass(frozen=True)
class Variant:
    """One way to do the work.

    Attributes:
        work: the timed call; it trains one round of each of its runs.
        runs: runs that are trained together.
        rounds: calls in one turn; None: as many as take ``TURN`` seconds.
        torch_threads: torch's threads within one operation.
    """

    name: str
    work: Callable[[], object]
    runs: int = 1
    rounds: int | None = None
    torch_threads: int = 1


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one number."""

    median: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def of_ratios(cls, values: Sequence[float], to: Sequence[float]) -> Spread:
        """Summarize the ratios of two sequences, pair by pair."""
        return cls.of([value / other for value, other in zip(values, to, strict=True)])

    def times(self, factor: float) -> Spread:
        """Convert to another unit."""
        return Spread(factor * self.median, factor * self.min, factor * self.max, self.n)


def take_turns(
    variants: Sequence[Variant],
    *,
    repeats: int,
    note: Note = lambda *_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds a round and run of each variant, one number a turn; those of the same turn are comparable.

    Names differ. One round of each warms up; then ``repeats`` turns count. ``note`` is called before every turn.
    """
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    rounds: dict[str, int] = {}
    threads = torch.get_num_threads()
    try:
        for turn in range(repeats + 1):
            for place, variant in enumerate(variants):
                note(variant.name, turn * len(variants) + place, len(variants) * (repeats + 1))
                if turn:
                    spent = _timed(variant, rounds[variant.name], clock)
                    seconds[variant.name].append(spent / variant.runs)
                else:
                    _timed(variant, 1, clock)
                    rounds[variant.name] = variant.rounds or max(1, round(TURN / _timed(variant, 1, clock)))
    finally:
        torch.set_num_threads(threads)
    return seconds


def _timed(variant: Variant, rounds: int, clock: Callable[[], float]) -> float:
    torch.set_num_threads(variant.torch_threads)
    _wait_for_kernels()
    start = clock()
    for _ in range(rounds):
        variant.work()
    _wait_for_kernels()
    return (clock() - start) / rounds


def _wait_for_kernels() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def trainer_of(
    experiment: Federated, data: Data, device: str, *, executor: Executor = "auto", pool: int = 1
) -> FederatedTrainer:
    """Return the engine's trainer of an experiment."""
    return cast(FederatedTrainer, make_trainer(experiment, data, device=device, executor=executor, pool=pool)[0])


def alone(name: str, trainer: FederatedTrainer, rounds: int | None = None) -> Variant:
    """Return the rounds of one run."""
    return Variant(name, partial(trainer.step, wait=False), rounds=rounds)


def together(name: str, trainers: Sequence[FederatedTrainer], rounds: int | None = None) -> Variant:
    """Return the rounds of runs that are trained as one stack."""
    work = partial(step_together, trainers, [False] * len(trainers), wait=False)
    return Variant(name, work, len(trainers), rounds)


def seeds_of(experiment: Federated, runs: int) -> list[Federated]:
    """Return an experiment with different seeds."""
    return [cast(Federated, parse_experiment({**experiment.to_json(), "seed": seed})) for seed in range(runs)]


def plain_loops(experiment: Federated, data: Data, device: str, threads: int) -> list[Variant]:
    """Return the rounds of both plain loops; ``threads`` are those of torch."""
    loops = {
        PLAIN: PlainLoop(experiment, data, device),
        CHANNELS_LAST: PlainLoop(experiment, data, device, fused=True, memory_format=torch.channels_last),
    }
    return [Variant(name, loop.round, torch_threads=threads) for name, loop in loops.items()]


def faster_loop(seconds: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the seconds of the faster plain loop in each turn."""
    return list(map(min, seconds[PLAIN], seconds[CHANNELS_LAST]))


@dataclass(frozen=True)
class Comparison:
    """Flbench and plain loops on one experiment.

    Attributes:
        executor: the one that ``auto`` selects.
        runs: the runs that are trained together, as many as fill a stack; 1 if clients are not stacked.
        seconds: seconds a round and run of each way to train, a number a turn.
        speed: of each of flbench's ways, relative to the faster plain loop of the same turn.
    """

    executor: str
    runs: int
    seconds: Mapping[str, Sequence[float]]
    speed: Mapping[str, Spread]


def compare(
    experiment: Federated,
    data: Data,
    *,
    device: str,
    threads: int,
    repeats: int,
    note: Note = lambda *_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Return the times of an experiment's rounds by flbench and by two careful plain loops, in turns.

    ``threads`` are those of the loop executor, and of torch in the plain loops; the others are as in ``take_turns``.
    """
    runs = runs_worth_fusing(experiment, data, device=device, executor="auto")
    with matmul_precision_restored():
        trainer = trainer_of(experiment, data, device, pool=threads)
        ours = [alone(FLBENCH, trainer)]
        if runs > 1:
            stack = [trainer_of(one, data, device) for one in seeds_of(experiment, runs)]
            ours.append(together(f"{FLBENCH}, {runs} runs together", stack))
        variants = [*ours, *plain_loops(experiment, data, device, threads)]
        seconds = take_turns(variants, repeats=repeats, note=note, clock=clock)
    best = faster_loop(seconds)
    speed = {one.name: Spread.of_ratios(best, seconds[one.name]) for one in ours}
    return Comparison(trainer.executor.name, runs, seconds, speed)
