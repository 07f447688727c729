"""Time each executor, runs together and plain loops on some workloads, and compare them with the machine's peak.

    python -m benchmarks.executors [digits cifar10 ...] [FIELD=VALUE ...] [--threads 2] [--device cuda] [--json]

All take turns in one process. The peak is the fastest of several matrix products and a convolution on as many cores in
the same precision. On a GPU rounds are timed as single kernels and as one CUDA graph each. The plain loops have torch's
default layout of images and compute bf16 by autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import torch

from benchmarks.common import Case, Row, measure_each, options
from benchmarks.loader import loaders
from flbench.bench.loop import PlainLoop
from flbench.bench.timing import Spread, Variant, alone, seeds_of, together, trainer_of
from flbench.choices import Executor
from flbench.engine.setup import make_network, runs_worth_fusing
from flbench.models.flops import sample_flops

#: The variants with which the others are compared: the engine's reference, and loops without the engine.
REFERENCE = "loop, pool of 1"
IN_MEMORY = "plain, in memory"
LOADER = "plain, DataLoader"

#: On a GPU: each round is launched as one CUDA graph.
GRAPH = "stacked, one graph a round"

#: Sides of the square matrices whose products measure the machine's peak. On a CPU one fits into a core's cache.
PRODUCT_SIDES = {"cpu": (512, 2048), "cuda": (8192,)}

#: Images, channels in and out, and side of the convolution that measures it, too: the second one of the CIFAR-10 CNN.
CONVOLUTION = 32, 64, 14

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


@dataclass(frozen=True)
class Timed:
    """A variant, the precision of its arithmetic, and the cores that it can keep busy (on a GPU, of the host)."""

    variant: Variant
    precision: str
    cores: int = 1


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
        return Product(name, Variant(f"{name}, {precision}, cores: {cores}", work, torch_threads=cores), flops)

    found, dtype = [], _DTYPES[precision]
    for side in PRODUCT_SIDES[device]:
        a, b = torch.rand(2, side, side, device=device).to(dtype)
        found.append(product(f"torch.mm of {side}", partial(torch.mm, a, b, out=torch.empty_like(a)), 2.0 * side**3))
        if device == "cpu" and precision == "fp32" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            work = partial(torch.ops.mkldnn._linear_pointwise, a, b, None, "none", [], "")
            found.append(product(f"oneDNN's product of {side}", work, 2.0 * side**3))
    if device == "cpu":
        images, channels, pixels = CONVOLUTION
        shapes = ((images, channels, pixels, pixels), (channels, channels, 5, 5))
        x, weight = (torch.rand(shape).to(dtype).contiguous(memory_format=torch.channels_last) for shape in shapes)
        flops = 2.0 * images * (pixels - 4) ** 2 * 25 * channels**2
        found.append(product(f"convolution of {channels} channels", partial(torch.conv2d, x, weight), flops))
    return found


def measure(case: Case) -> list[Row]:
    """Return a row for each variant and each peak, all timed in the same turns; rates are medians."""
    variants = list(variants_of(case))
    at_peak = {key: products(case.device, *key) for key in sorted({(one.precision, one.cores) for one in variants})}
    of_products = [one.variant for some in at_peak.values() for one in some]
    seconds = case.turns([*(one.variant for one in variants), *of_products])
    peaks = {
        key: max((one.flops / min(seconds[one.variant.name]), one.name) for one in some)
        for key, some in at_peak.items()
    }
    samples = case.experiment.cohort_size * mean(case.trainer().run.steps) * case.experiment.batch_size
    network, (channels, height, width) = (
        make_network(case.experiment, case.data, "cpu"),
        case.data.train.images.shape[1:],
    )
    flops = samples * sample_flops(network, (channels, height, width), backward=True)
    rows: list[Row] = [
        {
            "variant": one.variant.name,
            "precision": one.precision,
            "cores": one.cores,
            "runs": one.variant.runs,
            "ms a round and run": Spread.of(own).times(1000),
            "GFLOP/s": flops / Spread.of(own).median / 1e9,
            "% of peak": 100 * flops / Spread.of(own).median / peaks[one.precision, one.cores][0],
            **{f"x {name}": Spread.of_ratios(seconds[name], own) for name in (REFERENCE, IN_MEMORY, LOADER)},
        }
        for one in variants
        for own in [seconds[one.variant.name]]
    ]
    for (precision, cores), (peak, name) in peaks.items():
        rows.append({"variant": f"peak: {name}", "precision": precision, "cores": cores, "GFLOP/s": peak / 1e9})
    return rows


def variants_of(case: Case) -> Iterator[Timed]:
    """Yield the ways to train the case's rounds."""
    experiment, data, device, precision = case.experiment, case.data, case.device, case.experiment.precision

    def engine(name: str, executor: Executor, threads: int = 1, *, graph: bool = True) -> Timed:
        trainer = replace(case, threads=threads).trainer(executor)
        trainer.record = trainer.record if graph else None
        return Timed(alone(name, trainer), precision, threads)  # each thread has one torch thread

    yield engine(REFERENCE, "loop")
    if case.threads > 1 and device == "cpu":
        yield engine(f"loop, pool of {case.threads}", "loop", case.threads)
    yield engine("stacked", "stacked", graph=False)
    if device == "cuda":
        yield engine(GRAPH, "stacked")
    if (runs := runs_worth_fusing(experiment, data, device=device, executor="auto")) > 1:
        stack = [trainer_of(one, data, device, executor="stacked") for one in seeds_of(experiment, runs)]
        yield Timed(together(f"fused, {runs} runs", stack), precision)
    for name, loop in (
        (IN_MEMORY, PlainLoop(experiment, data, device)),
        (LOADER, PlainLoop(experiment, data, device, source=loaders)),
    ):
        cores = case.threads if device == "cpu" else 1
        variant = Variant(name, loop.round, torch_threads=case.threads)
        yield Timed(variant, precision, cores)


if __name__ == "__main__":
    parser = options(__doc__ or "", "digits", "mlp", "lenet", "cifar10")
    measure_each("executors", measure, parser.parse_intermixed_args())
