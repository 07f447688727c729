"""Time the engine's executors, fused runs and plain loops on one workload, and how its cost grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from flbench.bench.measure import Note, Spread, Variant, products, take_turns
from flbench.bench.plain_pytorch import PlainLoop, Training
from flbench.bench.workloads import Workload, data_for, name_of
from flbench.choices import Precision, UsedDevice
from flbench.config import Federated
from flbench.data.shards import shards_of
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.setup import (
    executor_for,
    make_network,
    make_trainer,
    matmul_precision_restored,
    runs_worth_fusing,
)
from flbench.models.flops import sample_flops

#: The variants with which the others are compared: the engine's reference, and loops without the engine.
REFERENCE = "loop, pool of 1"
IN_MEMORY = "plain, in memory"
LOADER = "plain, DataLoader"

#: On a GPU: each round is launched as one CUDA graph.
GRAPH = "stacked, one graph a round"

#: Multiples of a workload's clients, local steps and runs at which its cost is measured.
FACTORS = (1, 2, 4)


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        rounds: rounds in a turn; None: the workload's own number.
        repeats: turns of each variant.
        threads: threads of the loop executor, and of torch in the plain loops.
        fuse: runs that are trained together; None: as many as fill one stack, if ``auto`` stacks clients.
        norm: normalization of the network.
        data_root: folder of the data sets; None: the default one.
    """

    rounds: int | None = None
    repeats: int = 5
    device: UsedDevice = "cpu"
    precision: Precision = "fp32"
    threads: int = 1
    fuse: int | None = None
    norm: str = "none"
    data_root: Path | None = None


@dataclass(frozen=True)
class Peak:
    """The most FLOP/s that any of several products reached, each timed ``n`` times in the same turns as the variants.

    Attributes:
        by: the product that reached it.
    """

    precision: str
    cores: int
    flops_per_s: float
    by: str
    n: int


@dataclass(frozen=True)
class Row:
    """The speed of one variant, summed over its runs. Rates without a spread are medians.

    Attributes:
        cores: cores that it can keep busy; on a GPU, those of the host.
        peak_fraction: its FLOP/s over the peak of as many cores in the same precision.
        speedup: for each reference, its seconds a round over this variant's; each ratio within one turn.
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
    """The cost of a round, of all its runs, at one number of clients, local steps or runs.

    Attributes:
        cost: seconds relative to the smallest number of the series; each ratio within one turn.
    """

    series: str
    value: int
    seconds: Spread
    client_steps_per_s: float
    cost: Spread


@dataclass(frozen=True)
class Comparison:
    """Everything measured on one workload; ``auto`` is the executor that ``--executor auto`` selects for it."""

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


def compare(workload: Workload, settings: Settings, *, scaling: bool, note: Note) -> Comparison:
    """Measure a workload; with ``scaling`` also at more clients, local steps and fused runs."""
    bench = _Bench(workload, settings, note)
    with matmul_precision_restored():
        peaks, rows = bench.compare()
        points = bench.scale() if scaling else []
    experiment = bench.experiment
    return Comparison(
        workload=workload.name,
        what=workload.what,
        norm=experiment.norm.label(),
        data=name_of(bench.data),
        device=settings.device,
        auto=bench.auto,
        clients=experiment.clients,
        local_steps=cast(int, experiment.local_steps),
        batch_size=experiment.batch_size,
        rounds=bench.rounds,
        flops_per_sample=bench.flops,
        peaks=peaks,
        rows=rows,
        scaling=points,
    )


class _Bench:
    """One workload with its experiment and data."""

    def __init__(self, workload: Workload, settings: Settings, note: Note) -> None:
        self._workload, self._settings, self._note = workload, settings, note
        self.rounds = settings.rounds or workload.turn(settings.device)
        self.experiment = self._experiment()
        self.data = data_for(self.experiment, settings.data_root)
        image = cast(tuple[int, int, int], self.data.train.images.shape[1:])
        self.flops = sample_flops(make_network(self.experiment, self.data, "cpu"), image, backward=True)
        self.auto = executor_for(self.experiment, self.data, device=settings.device, wanted="auto")

    def compare(self) -> tuple[list[Peak], list[Row]]:
        """Time the peaks and all variants in the same turns."""
        variants = list(self._variants())
        keys = sorted({(variant.precision, variant.cores) for variant in variants})
        timed = {key: products(self._settings.device, *key) for key in keys}
        seconds = self._take_turns([*variants, *(each.variant for some in timed.values() for each in some)])
        peaks = []
        for key, some in timed.items():
            flops_per_s, by = max((each.flops / min(seconds[each.variant.name]), each.name) for each in some)
            peaks.append(Peak(*key, flops_per_s, by, self._settings.repeats))
        a_run = {variant.name: [s / variant.runs for s in seconds[variant.name]] for variant in variants}
        return peaks, [self._row(variant, a_run, peaks) for variant in variants]

    def scale(self) -> list[Point]:
        """Time the executor of ``auto`` at more clients, more local steps and, if it stacks, more fused runs."""

        def auto(value: int, **changes: Any) -> Variant:
            return self._engine(f"{self.auto}, {value}", self.auto, self._settings.threads, **changes)

        clients, local_steps = self.experiment.clients, cast(int, self.experiment.local_steps)
        series = {
            "clients": [(clients * factor, auto(clients * factor, clients=clients * factor)) for factor in FACTORS],
            "local steps": [
                (local_steps * factor, auto(local_steps * factor, local_steps=local_steps * factor))
                for factor in FACTORS
            ],
        }
        if self.auto == "stacked":
            series["fused runs"] = [(factor, self._fused(factor)) for factor in FACTORS]
        points = []
        for name, variants in series.items():
            seconds = self._take_turns([variant for _, variant in variants], f" by {name}")
            first = seconds[variants[0][1].name]
            for factor, (value, variant) in zip(FACTORS, variants, strict=True):
                own = Spread.of(seconds[variant.name])
                steps_per_s = clients * local_steps * factor / own.median
                points.append(Point(name, value, own, steps_per_s, Spread.of_ratios(seconds[variant.name], first)))
        return points

    def _variants(self) -> Iterator[Variant]:
        settings = self._settings
        yield self._engine(REFERENCE, "loop", 1)
        if settings.threads > 1 and settings.device == "cpu":
            yield self._engine(f"loop, pool of {settings.threads}", "loop", settings.threads)
        yield self._engine("stacked", "stacked", 1, graph=False)
        if settings.device == "cuda":
            yield self._engine(GRAPH, "stacked", 1)
        worth = partial(runs_worth_fusing, self.experiment, self.data, device=settings.device, executor=self.auto)
        if (runs := settings.fuse or worth()) > 1:
            yield self._fused(runs)
        yield self._plain(IN_MEMORY, "memory")
        yield self._plain(LOADER, "loader")

    def _engine(self, name: str, executor: str, pool: int, *, graph: bool = True, **changes: Any) -> Variant:
        trainer = self._trainer(executor, pool, **changes)
        if not graph:
            trainer.record = None
        cores = pool if executor == "loop" else 1  # each thread of the pool computes with one torch thread
        work = partial(trainer.step, wait=False)
        return Variant(name, work, self._settings.precision, rounds=self.rounds, cores=cores)

    def _fused(self, runs: int) -> Variant:
        trainers = [self._trainer("stacked", 1, seed=seed) for seed in range(runs)]
        work = partial(step_together, trainers, [False] * runs, wait=False)
        name = f"fused, {runs} run{'s' * (runs > 1)}"
        return Variant(name, work, self._settings.precision, rounds=self.rounds, runs=runs)

    def _trainer(self, executor: str, pool: int, **changes: int) -> FederatedTrainer:
        experiment, device = self._experiment(**changes), self._settings.device
        trainer, _ = make_trainer(experiment, self.data, device=device, executor=cast(Any, executor), pool=pool)
        return cast(FederatedTrainer, trainer)

    def _plain(self, name: str, source: Literal["memory", "loader"]) -> Variant:
        settings, experiment = self._settings, self.experiment
        training = Training.of(experiment, settings.device)
        network = make_network(experiment, self.data, settings.device)
        loop = PlainLoop(network, self.data, shards_of(experiment, self.data).train, training, source)
        precision = "fp32" if settings.precision == "bf16" else settings.precision  # the plain loops have no autocast
        cores = settings.threads if settings.device == "cpu" else 1
        return Variant(name, loop.round, precision, rounds=self.rounds, cores=cores, torch_threads=settings.threads)

    def _row(self, variant: Variant, seconds: Mapping[str, list[float]], peaks: Sequence[Peak]) -> Row:
        """The speed of a variant, from the seconds a round and run of all variants."""
        own = seconds[variant.name]
        rounds_per_s = Spread.of([1 / s for s in own])
        steps_per_s = rounds_per_s.median * self.experiment.clients * cast(int, self.experiment.local_steps)
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
            speedup={name: Spread.of_ratios(seconds[name], own) for name in (REFERENCE, IN_MEMORY, LOADER)},
        )

    def _experiment(self, **changes: Any) -> Federated:
        common = {"norm": self._settings.norm, "precision": self._settings.precision}
        return self._workload.experiment(self._settings.device, **{**common, **changes})

    def _take_turns(self, variants: Sequence[Variant], part: str = "") -> dict[str, list[float]]:
        name = f"{self._workload.name}{part}"
        return take_turns(
            variants,
            repeats=self._settings.repeats,
            note=lambda what, done, total: self._note(f"{name}: {what}", done, total),
        )
