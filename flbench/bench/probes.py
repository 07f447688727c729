"""Time each probe in turns with rounds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from flbench.bench.compare import Settings
from flbench.bench.measure import Note, Spread, Variant, take_turns
from flbench.bench.workloads import Workload, data_for, name_of
from flbench.choices import UsedExecutor
from flbench.config import Federated
from flbench.data.arrays import Data
from flbench.engine.federated import FederatedTrainer
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import executor_for, make_network, make_trainer, matmul_precision_restored
from flbench.probes import Observation, Probe

#: The probes that are timed, and the rounds between two measurements of each.
EVERY: Mapping[str, int] = {"features": 50, "drift": 50, "sharpness": 50, "overfit": 50}

ROUND = "a round"
BETWEEN = "a round between measurements"
KEEPING = "a round that keeps client models"


@dataclass(frozen=True)
class ProbeCost:
    """The cost of one probe.

    Attributes:
        every: rounds between two measurements.
        seconds: seconds of a measurement.
        rounds: the same in rounds of training; each ratio within one turn.
        share: share of the time of training and all probes.
    """

    probe: str
    every: int
    seconds: Spread
    rounds: Spread
    share: float


@dataclass(frozen=True)
class ProbeCosts:
    """The cost of all probes on one workload.

    Attributes:
        round_s: seconds of a round without probes.
        between: a round with probes of which none is due, relative to one without; turn by turn.
        keeping: likewise for a round that keeps the clients' models for a probe.
        share: share of all probes together.
    """

    workload: str
    what: str
    norm: str
    data: str
    device: str
    executor: str
    round_s: Spread
    between: Spread
    keeping: Spread
    looks: Sequence[ProbeCost]
    share: float


def probe_costs(workload: Workload, settings: Settings, *, note: Note) -> ProbeCosts:
    """Time every probe of ``EVERY`` on a workload, in turns with its rounds."""
    fields = {"norm": settings.norm, "precision": settings.precision, "eval_every": 10}
    plain = workload.experiment(settings.device, **fields)
    probes = cast(tuple[Probe, ...], workload.experiment(settings.device, **fields, probes=dict(EVERY)).probes)
    data = data_for(plain, settings.data_root)
    executor = executor_for(plain, data, device=settings.device, wanted="auto")
    rounds = settings.rounds or workload.turn(settings.device)
    with matmul_precision_restored():
        variants = _variants(plain, data, probes, settings, executor, rounds)
        seconds = take_turns(
            variants,
            repeats=settings.repeats,
            note=lambda what, done, total: note(f"{workload.name}, probes: {what}", done, total),
        )
    round_s = Spread.of(seconds[ROUND])
    measured = {probe.name: Spread.of(seconds[probe.name]) for probe in probes}
    a_round = {name: spread.median / EVERY[name] for name, spread in measured.items()}
    total = round_s.median + sum(a_round.values())
    looks = [
        ProbeCost(name, EVERY[name], spread, Spread.of_ratios(seconds[name], seconds[ROUND]), a_round[name] / total)
        for name, spread in measured.items()
    ]
    return ProbeCosts(
        workload=workload.name,
        what=workload.what,
        norm=plain.norm.label(),
        data=name_of(data),
        device=settings.device,
        executor=executor,
        round_s=round_s,
        between=Spread.of_ratios(seconds[BETWEEN], seconds[ROUND]),
        keeping=Spread.of_ratios(seconds[KEEPING], seconds[ROUND]),
        looks=looks,
        share=sum(look.share for look in looks),
    )


def _variants(
    plain: Federated, data: Data, probes: Sequence[Probe], settings: Settings, executor: UsedExecutor, rounds: int
) -> list[Variant]:
    """Return rounds without, between and with measurements, and each probe's measurement after one round."""

    def trainer() -> FederatedTrainer:
        made, _ = make_trainer(plain, data, device=settings.device, executor=executor, pool=settings.threads)
        return cast(FederatedTrainer, made)

    def round_between(trainer: FederatedTrainer) -> None:
        """Train a round after which no probe is due, as ``execution`` does."""
        due = [probe for probe in probes if probe.is_due(1, 10**9)]
        trainer.step(keep_clients=any(probe.needs_clients for probe in due), wait=True)

    observed = trainer()
    before = observed.x
    report = observed.step(keep_clients=True, wait=True)
    access = ModelAccess(observed, make_network(plain, data, settings.device), plain.lr)
    after = Observation(observed.round, before, observed.x, report.client_params, report.weights_S, access)
    variant = partial(Variant, precision=settings.precision, cores=settings.threads)
    return [
        variant(ROUND, partial(trainer().step, wait=True), rounds=rounds),
        variant(BETWEEN, partial(round_between, trainer()), rounds=rounds),
        variant(KEEPING, partial(trainer().step, keep_clients=True, wait=True), rounds=rounds),
        *(variant(probe.name, partial(probe.measure, after)) for probe in probes),
    ]
