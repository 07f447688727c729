"""Time each executor, runs together and plain loops on some workloads, and compare them with the machine's peak.

    python -m benchmarks.executors [digits cifar10 ...] [--norm ln] [--precision bf16] [--threads 1] [--json]

All take turns in one process. The peak is the fastest of several matrix products and a convolution on as many cores in
the same precision. On a GPU rounds are timed as single kernels and as one CUDA graph each. The plain loops have torch's
default layout of images and compute bf16 in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.common import Row, Settings, engine_options, measure_workloads
from benchmarks.loader import loaders
from benchmarks.workloads import WORKLOADS, Workload
from flbench.bench.loop import PlainLoop
from flbench.bench.timing import Note, Spread, Variant, alone, seeds_of, take_turns, together, trainer_of
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.engine.setup import make_network, matmul_precision_restored, runs_worth_fusing
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
    sides, dtype = PRODUCT_SIDES[device], _DTYPES[precision]

    def product(name: str, work: Callable[[], object], flops: float) -> Product:
        # As many as take the time of a large one: a single small one is too short to be timed.
        rounds = max(1, round(max(sides) ** 3 / flops))
        variant = Variant(f"{name}, {precision}, cores: {cores}", work, rounds=rounds, torch_threads=cores)
        return Product(name, variant, flops)

    found = []
    for side in sides:
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


def measure(workload: Workload, settings: Settings, note: Note) -> list[Row]:
    """Return a row for each variant and each peak, all timed in the same turns; rates without a spread are medians."""
    experiment, data = settings.experiment(workload), settings.data_of(workload)
    channels, height, width = data.train.images.shape[1:]
    flops = sample_flops(make_network(experiment, data, "cpu"), (channels, height, width), backward=True)
    with matmul_precision_restored():
        variants = list(_variants(experiment, data, settings, settings.turn(workload)))
        keys = sorted({(one.precision, one.cores) for one in variants})
        at_peak = {key: products(settings.device, *key) for key in keys}
        timed = [one.variant for one in variants] + [one.variant for some in at_peak.values() for one in some]
        seconds = take_turns(timed, repeats=settings.repeats, note=note)
    peaks = {
        key: max((one.flops / min(seconds[one.variant.name]), one.name) for one in some)
        for key, some in at_peak.items()
    }
    steps = experiment.cohort_size * (experiment.local_steps or 1)
    rows: list[Row] = []
    for one in variants:
        own = seconds[one.variant.name]
        rounds_per_s = Spread.of([1 / s for s in own])
        samples = rounds_per_s.median * steps * experiment.batch_size
        peak, _ = peaks[one.precision, one.cores]
        rows.append(
            {
                "variant": one.variant.name,
                "precision": one.precision,
                "cores": one.cores,
                "runs": one.variant.runs,
                "rounds/s": rounds_per_s,
                "client steps/s": rounds_per_s.median * steps,
                "samples/s": samples,
                "GFLOP/s": samples * flops / 1e9,
                "% of peak": 100 * samples * flops / peak,
                **{f"x {name}": Spread.of_ratios(seconds[name], own) for name in (REFERENCE, IN_MEMORY, LOADER)},
            }
        )
    for (precision, cores), (peak, name) in peaks.items():
        rows.append({"variant": f"peak: {name}", "precision": precision, "cores": cores, "GFLOP/s": peak / 1e9})
    return rows


def _variants(experiment: Federated, data: Data, settings: Settings, rounds: int) -> Iterator[Timed]:
    device, threads, precision = settings.device, settings.threads, settings.precision

    def engine(name: str, executor: str, pool: int, *, graph: bool) -> Timed:
        trainer = trainer_of(experiment, data, device, executor=executor, pool=pool)  # type: ignore[arg-type]
        trainer.record = trainer.record if graph else None
        return Timed(alone(name, trainer, rounds), precision, pool)  # each thread has one torch thread

    yield engine(REFERENCE, "loop", 1, graph=True)
    if threads > 1 and device == "cpu":
        yield engine(f"loop, pool of {threads}", "loop", threads, graph=True)
    yield engine("stacked", "stacked", 1, graph=False)
    if device == "cuda":
        yield engine(GRAPH, "stacked", 1, graph=True)
    if (runs := settings.fuse or runs_worth_fusing(experiment, data, device=device, executor="auto")) > 1:
        yield Timed(fused(experiment, data, device, runs, rounds), precision)
    for name, loop in (
        (IN_MEMORY, PlainLoop(experiment, data, device)),
        (LOADER, PlainLoop(experiment, data, device, source=loaders)),
    ):
        variant = Variant(name, loop.round, rounds=rounds, torch_threads=threads)
        yield Timed(variant, "fp32" if precision == "bf16" else precision, threads if device == "cpu" else 1)


def fused(experiment: Federated, data: Data, device: str, runs: int, rounds: int) -> Variant:
    """Return runs that are trained as one stack."""
    trainers = [trainer_of(one, data, device, executor="stacked") for one in seeds_of(experiment, runs)]
    return together(f"fused, {runs} run{'s' * (runs > 1)}", trainers, rounds)


if __name__ == "__main__":
    measure_workloads("executors", measure, engine_options(__doc__ or "", *WORKLOADS).parse_args())
