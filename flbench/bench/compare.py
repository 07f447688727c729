"""The engine's executors, fused runs and plain loops on one workload, and how its cost grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch

from flbench.bench.measure import Note, Spread, Variant, gemm, take_turns
from flbench.bench.plain import PlainLoop, Training
from flbench.bench.project import Projection, project, table10_groups
from flbench.bench.workloads import Workload, data_for, training_flops
from flbench.config import Federated, Precision
from flbench.data.partition import shards_of
from flbench.engine.fused import step_together
from flbench.engine.rounds import FederatedTrainer
from flbench.engine.setup import (
    executor_for,
    make_network,
    make_trainer,
    matmul_precision_restored,
    runs_worth_fusing,
)

#: What the others are compared with, pair by pair: the engine's reference, and what one writes without it.
REFERENCE = "loop, pool of 1"
IN_MEMORY = "plain, in memory"
LOADER = "plain, DataLoader"

#: On a GPU, rounds that are launched as one graph each.
GRAPH = "stacked, one graph a round"

#: Precisions in which long trainings are projected on a GPU.
GPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")

#: Clients with which the memory of a large network is stated.
MANY_CLIENTS = 200

#: Multiples of a workload's clients, local steps and runs at which its cost is measured.
FACTORS = (1, 2, 4)


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        rounds: in a turn; None: the workload's own number.
        repeats: turns of each variant.
        threads: of the loop executor, and of torch in the plain loops.
        fuse: runs that are trained together; None: as many as fill one stack, where stacking is what ``auto`` means.
        norm: normalization of the network.
        data_root: folder of the data sets; None: the usual one.
    """

    rounds: int | None = None
    repeats: int = 5
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Precision = "fp32"
    threads: int = 1
    fuse: int | None = None
    norm: str = "none"
    data_root: Path | None = None


@dataclass(frozen=True)
class Peak:
    """The fastest product of two large square matrices in this measurement, of ``n``."""

    precision: str
    cores: int
    flops_per_s: float
    n: int


@dataclass(frozen=True)
class Row:
    """One variant. Rates count the rounds of all its runs; those without a spread are medians.

    ``cores`` are those that it can keep busy (of the host, where a GPU computes), ``peak_fraction`` is relative to the
    peak of as many in the same precision; ``speedup`` is by the name of the variant compared with, each ratio taken
    within one pair of turns.
    """

    variant: str
    precision: str
    cores: int
    runs: int
    rounds_per_s: Spread
    client_steps_per_s: float
    samples_per_s: float
    flops_per_s: float
    peak_fraction: float
    speedup: Mapping[str, Spread]


@dataclass(frozen=True)
class Point:
    """The cost of a round (of all its runs together) with so many clients, local steps or runs.

    ``cost`` is relative to the smallest number of its series, pair by pair.
    """

    series: str
    value: int
    seconds: Spread
    client_steps_per_s: float
    cost: Spread


@dataclass(frozen=True)
class Comparison:
    """All that was measured of one workload; ``auto`` is the executor that ``--executor auto`` means for it."""

    workload: str
    what: str
    norm: str
    data: str
    device: str
    auto: str
    clients: int
    local_steps: int
    batch_size: int
    rounds: int
    flops_per_sample: float
    peaks: Sequence[Peak]
    rows: Sequence[Row]
    scaling: Sequence[Point]
    projections: Sequence[Projection]


def compare(
    workload: Workload, settings: Settings, *, scaling: bool, projecting: bool = False, note: Note
) -> Comparison:
    """Measure a workload.

    Args:
        workload: what to train.
        settings: how to measure.
        scaling: whether its cost is measured with more clients, local steps and runs.
        projecting: whether what 10,000 rounds would take is.
        note: told of every turn.
    """
    bench = _Bench(workload, settings)
    with matmul_precision_restored():
        peaks, rows = bench.compare(note)
        points = bench.scale(note) if scaling else []
        projections = list(bench.project(note)) if projecting else []
    experiment = bench.experiment
    return Comparison(
        workload=workload.name,
        what=workload.what,
        norm=experiment.norm.label(),
        data="random images" if bench.data.fingerprint == "random" else bench.data.fingerprint,
        device=settings.device,
        auto=bench.auto,
        clients=experiment.clients,
        local_steps=_local_steps(experiment),
        batch_size=experiment.batch_size,
        rounds=bench.rounds,
        flops_per_sample=bench.flops,
        peaks=peaks,
        rows=rows,
        scaling=points,
        projections=projections,
    )


class _Bench:
    """A workload made ready: its experiment and its data."""

    def __init__(self, workload: Workload, settings: Settings) -> None:
        self._settings = settings
        self._workload = workload
        self.rounds = settings.rounds or workload.turn(settings.device)
        self.experiment = self._experiment()
        self.data = data_for(self.experiment, settings.data_root)
        self._dtype = torch.float64 if settings.precision == "fp64" else torch.float32
        image = cast(tuple[int, int, int], self.data.train.images.shape[1:])
        self.flops = training_flops(make_network(self.experiment, self.data, "cpu"), image, self._dtype)
        self.auto = executor_for(self.experiment, self.data, device=settings.device, wanted="auto")

    def compare(self, note: Note) -> tuple[list[Peak], list[Row]]:
        """Peaks and variants, all in the same turns."""
        settings, variants = self._settings, [*self._variants()]
        products = [gemm(settings.device, *key) for key in sorted({(v.precision, v.cores) for v in variants})]
        everything = [*variants, *(product for product, _ in products)]
        seconds = take_turns(everything, repeats=settings.repeats, note=self._named(note))
        peaks = [
            Peak(product.precision, product.cores, flops / min(seconds[product.name]), len(seconds[product.name]))
            for product, flops in products
        ]
        return peaks, [self._row(variant, seconds, variants, peaks) for variant in variants]

    def scale(self, note: Note) -> list[Point]:
        """The cost with more clients, more local steps and, where runs are fused, more runs."""
        base = self.experiment
        series = {
            "clients": [(value, self._auto(value, clients=value)) for value in _multiples(base.clients)],
            "local steps": [(value, self._auto(value, local_steps=value)) for value in _multiples(_local_steps(base))],
        }
        if self.auto == "stacked":
            series["fused runs"] = [(value, self._fused(value)) for value in _multiples(1)]
        return [point for name, points in series.items() for point in self._series(name, points, note)]

    def project(self, note: Note) -> Iterator[Projection]:
        """What 10,000 rounds take; on a GPU in each precision, alone and fused, and for the CNN all of Table 10."""
        settings = self._settings
        precisions: Sequence[Precision] = GPU_PRECISIONS if settings.device == "cuda" else [settings.precision]
        common: dict[str, Any] = {"device": settings.device, "executor": self.auto, "repeats": settings.repeats}
        for precision in precisions:
            for runs in sorted({1, self._runs_fused()}):
                group = [self._experiment(seed=seed, precision=precision) for seed in range(runs)]
                yield project(self._workload.name, group, self.data, **common, note=self._named(note, "10,000 rounds"))
        if settings.device == "cuda" and self._workload.name == "resnet18":
            many = [self._experiment(clients=MANY_CLIENTS, precision="bf16")]
            name = f"resnet18, {MANY_CLIENTS} clients"
            yield project(name, many, self.data, **{**common, "repeats": 2}, note=note)
        if settings.device == "cuda" and self._workload.name == "cifar10":
            for what, group in table10_groups(self.experiment, "tf32"):
                name = f"Table 10: {what}"
                yield project(name, group, self.data, **{**common, "repeats": 2}, note=note)

    def _runs_fused(self) -> int:
        """Runs that are trained together: as wished, or as many as fill a stack."""
        settings = self._settings
        return settings.fuse or runs_worth_fusing(
            self.experiment, self.data, device=settings.device, executor=self.auto
        )

    def _series(self, name: str, points: Sequence[tuple[int, Variant]], note: Note) -> Iterator[Point]:
        repeats = self._settings.repeats
        variants = [variant for _, variant in points]
        seconds = take_turns(variants, repeats=repeats, note=self._named(note, f"by {name}"))
        first = seconds[variants[0].name]
        steps = self.experiment.clients * _local_steps(self.experiment)
        for value, variant in points:
            own = seconds[variant.name]
            done = steps * value / points[0][0]
            yield Point(name, value, Spread.of(own), done / Spread.of(own).median, Spread.of(_ratios(own, first)))

    def _variants(self) -> Iterator[Variant]:
        settings = self._settings
        yield self._engine(REFERENCE, "loop", 1)
        if settings.threads > 1 and settings.device == "cpu":
            yield self._engine(f"loop, pool of {settings.threads}", "loop", settings.threads)
        yield self._engine("stacked", "stacked", 1, whole=False)
        if settings.device == "cuda":
            yield self._engine(GRAPH, "stacked", 1)
        if (runs := self._runs_fused()) > 1:
            yield self._fused(runs)
        yield self._plain(IN_MEMORY, "memory")
        yield self._plain(LOADER, "loader")

    def _auto(self, value: int, **changes: Any) -> Variant:
        return self._engine(f"{self.auto}, {value}", self.auto, self._settings.threads, **changes)

    def _engine(self, name: str, executor: str, pool: int, *, whole: bool = True, **changes: Any) -> Variant:
        trainer = self._trainer(executor, pool, **changes)
        if not whole:
            trainer.record = None
        cores = pool if executor == "loop" else 1  # a worker computes with one torch thread
        work = partial(trainer.step, wait=False)
        return Variant(name, work, self._settings.precision, rounds=self.rounds, cores=cores)

    def _fused(self, runs: int) -> Variant:
        trainers = [self._trainer("stacked", 1, seed=seed) for seed in range(runs)]
        work = partial(step_together, trainers, [False] * runs, wait=False)
        return Variant(
            f"fused, {runs} run{'s' * (runs > 1)}", work, self._settings.precision, rounds=self.rounds, runs=runs
        )

    def _trainer(self, executor: str, pool: int, **changes: int) -> FederatedTrainer:
        wanted = cast(Literal["loop", "stacked"], executor)
        experiment, device = self._experiment(**changes), self._settings.device
        trainer, _ = make_trainer(experiment, self.data, device=device, executor=wanted, pool=pool)
        return cast(FederatedTrainer, trainer)

    def _plain(self, name: str, source: Literal["memory", "loader"]) -> Variant:
        settings, experiment = self._settings, self.experiment
        training = Training.of(experiment, settings.device)
        network = make_network(experiment, self.data, settings.device)
        loop = PlainLoop(network, self.data, shards_of(experiment, self.data).train, training, source)
        precision = "fp32" if settings.precision == "bf16" else settings.precision  # it has no autocast
        cores = settings.threads if settings.device == "cpu" else 1
        return Variant(name, loop.round, precision, rounds=self.rounds, cores=cores, torch_threads=settings.threads)

    def _row(
        self, variant: Variant, seconds: Mapping[str, list[float]], variants: Sequence[Variant], peaks: Sequence[Peak]
    ) -> Row:
        per_round = {other.name: [s / other.runs for s in seconds[other.name]] for other in variants}
        own = per_round[variant.name]
        rounds_per_s = Spread.of([1 / s for s in own])
        steps_per_s = rounds_per_s.median * self.experiment.clients * _local_steps(self.experiment)
        samples_per_s = steps_per_s * self.experiment.batch_size
        (peak,) = (p for p in peaks if (p.precision, p.cores) == (variant.precision, variant.cores))
        return Row(
            variant=variant.name,
            precision=variant.precision,
            cores=variant.cores,
            runs=variant.runs,
            rounds_per_s=rounds_per_s,
            client_steps_per_s=steps_per_s,
            samples_per_s=samples_per_s,
            flops_per_s=samples_per_s * self.flops,
            peak_fraction=samples_per_s * self.flops / peak.flops_per_s,
            speedup={name: Spread.of(_ratios(per_round[name], own)) for name in (REFERENCE, IN_MEMORY, LOADER)},
        )

    def _experiment(self, **changes: Any) -> Federated:
        common = {"norm": self._settings.norm, "precision": self._settings.precision}
        return self._workload.experiment(self._settings.device, **{**common, **changes})

    def _named(self, note: Note, part: str = "") -> Note:
        name = " ".join(filter(None, [self._workload.name, part]))
        return lambda what, done, total: note(f"{name}: {what}", done, total)


def _local_steps(experiment: Federated) -> int:
    return cast(int, experiment.local_steps)


def _multiples(base: int) -> list[int]:
    return [base * factor for factor in FACTORS]


def _ratios(values: Sequence[float], to: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, to, strict=True)]
