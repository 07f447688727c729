"""Time variants of one workload in turns within one process, so that other load slows all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

#: Side of the square matrices whose product measures the machine's peak.
GEMM_SIDE = {"cpu": 2048, "cuda": 8192}

#: Called before each turn with the variant's name, the turns done and the turns in all.
Note = Callable[[str, int, int], None]

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


@dataclass(frozen=True)
class Variant:
    """One way to do the work.

    Attributes:
        work: the timed call; it trains one round of each of its runs.
        precision: precision of its arithmetic.
        rounds: rounds in one turn.
        runs: runs that are trained together.
        cores: cores that it can keep busy.
        torch_threads: torch's threads within one operation.
    """

    name: str
    work: Callable[[], object]
    precision: str
    rounds: int = 1
    runs: int = 1
    cores: int = 1
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


def gemm(device: str, precision: str, cores: int) -> tuple[Variant, float]:
    """Return the product of two large square matrices as a variant, and its floating-point operations."""
    side = GEMM_SIDE[device]
    a, b = torch.rand(2, side, side, device=device).to(_DTYPES[precision])
    out = torch.empty_like(a)
    name = f"gemm {side}, {precision}" + (f", {cores} core{'s' * (cores > 1)}" if device == "cpu" else "")
    return Variant(name, partial(torch.mm, a, b, out=out), precision, cores=cores, torch_threads=cores), 2.0 * side**3


def take_turns(variants: Sequence[Variant], *, repeats: int, note: Note) -> dict[str, list[float]]:
    """Return the seconds a round of each variant, one number a turn; numbers of the same turn are comparable.

    Args:
        variants: variants with different names.
        repeats: counted turns of each, after one round to warm up.
        note: called before every turn.
    """
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    total = len(variants) * (repeats + 1)
    threads = torch.get_num_threads()
    try:
        for turn in range(repeats + 1):
            for place, variant in enumerate(variants):
                note(variant.name, turn * len(variants) + place, total)
                spent = _timed(variant, variant.rounds if turn else 1)
                if turn:
                    seconds[variant.name].append(spent)
    finally:
        torch.set_num_threads(threads)
    return seconds


def _timed(variant: Variant, rounds: int) -> float:
    torch.set_num_threads(variant.torch_threads)
    _wait_for_kernels()
    start = time.perf_counter()
    for _ in range(rounds):
        variant.work()
    _wait_for_kernels()
    return (time.perf_counter() - start) / rounds


def _wait_for_kernels() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
