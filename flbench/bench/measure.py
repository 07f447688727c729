"""Variants of one workload timed in turns within one process, so that a noisy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

#: Side of the square matrices whose product tells the machine's peak.
GEMM_SIDE = {"cpu": 2048, "cuda": 8192}

#: Told before each turn: what is measured, turns done, turns in all.
Note = Callable[[str, int, int], None]

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


@dataclass(frozen=True)
class Variant:
    """One way to do the work.

    Attributes:
        work: one round, of each of its runs.
        precision: of its arithmetic.
        rounds: in one turn.
        runs: trained together.
        cores: that it can keep busy.
        torch_threads: with which torch computes each of its operations.
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
        """The summary of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def times(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(factor * self.median, factor * self.min, factor * self.max, self.n)


def gemm(device: str, precision: str, cores: int) -> tuple[Variant, float]:
    """The product of two large square matrices as a variant, and its number of floating-point operations."""
    side = GEMM_SIDE[device]
    a, b = torch.rand(2, side, side, device=device).to(_DTYPES[precision])
    out = torch.empty_like(a)
    name = f"gemm {side}, {precision}" + (f", {cores} core{'s' * (cores > 1)}" if device == "cpu" else "")
    return Variant(name, partial(torch.mm, a, b, out=out), precision, cores=cores, torch_threads=cores), 2.0 * side**3


def take_turns(variants: Sequence[Variant], *, repeats: int, note: Note) -> dict[str, list[float]]:
    """Seconds per round of each variant, a number a turn; those of one turn may be compared.

    Args:
        variants: with different names.
        repeats: turns of each that count; before them, each has one round to warm up.
        note: told of every turn.
    """
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    total = len(variants) * (repeats + 1)
    with _threads_restored():
        for turn in range(repeats + 1):
            for place, variant in enumerate(variants):
                note(variant.name, turn * len(variants) + place, total)
                spent = _timed(variant, variant.rounds if turn else 1)
                if turn:
                    seconds[variant.name].append(spent)
    return seconds


def _timed(variant: Variant, rounds: int) -> float:
    torch.set_num_threads(variant.torch_threads)
    _finish_kernels()
    began = time.perf_counter()
    for _ in range(rounds):
        variant.work()
    _finish_kernels()
    return (time.perf_counter() - began) / rounds


def _finish_kernels() -> None:
    """Wait for what was only queued on a GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def _threads_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
