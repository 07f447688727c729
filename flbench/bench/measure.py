"""Time variants of one workload in turns within one process, so that other load slows all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

#: Sides of the square matrices whose products measure the machine's peak. On a CPU one fits into a core's cache.
PRODUCT_SIDES = {"cpu": (512, 2048), "cuda": (8192,)}

#: Images, channels in and out, and side of the convolution that measures it, too: the second one of the CIFAR-10 CNN.
CONVOLUTION = 32, 64, 14

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


@dataclass(frozen=True)
class Product:
    """A computation that may reach the machine's peak: its name, its variant, its floating-point operations."""

    name: str
    variant: Variant
    flops: float


def products(device: str, precision: str, cores: int) -> list[Product]:
    """Return the computations whose fastest is the peak: products of square matrices, and on a CPU a convolution.

    On a CPU ``torch.mm`` in fp32 calls MKL, which uses half of the vector width of AMD's cores; oneDNN uses all of it.
    """

    def product(name: str, work: Callable[[], object], flops: float) -> Product:
        where = f", {cores} core{'s' * (cores > 1)}" if device == "cpu" else ""
        # As many as take the time of a large one: a single small one is too short to be timed.
        rounds = max(1, round(max(sides) ** 3 / flops))
        variant = Variant(f"{name}, {precision}{where}", work, precision, rounds, cores=cores, torch_threads=cores)
        return Product(name, variant, flops)

    sides = PRODUCT_SIDES[device]
    found = []
    for side in sides:
        a, b = torch.rand(2, side, side, device=device).to(_DTYPES[precision])
        found.append(product(f"torch.mm of {side}", partial(torch.mm, a, b, out=torch.empty_like(a)), 2.0 * side**3))
        if device == "cpu" and precision == "fp32" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            work = partial(torch.ops.mkldnn._linear_pointwise, a, b, None, "none", [], "")
            found.append(product(f"oneDNN's product of {side}", work, 2.0 * side**3))
    if device == "cpu":
        images, channels, pixels = CONVOLUTION
        x, weight = (
            torch.rand(shape).to(_DTYPES[precision]).contiguous(memory_format=torch.channels_last)
            for shape in ((images, channels, pixels, pixels), (channels, channels, 5, 5))
        )
        flops = 2.0 * images * (pixels - 4) ** 2 * 25 * channels**2
        found.append(product(f"convolution of {channels} channels", partial(torch.conv2d, x, weight), flops))
    return found


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
