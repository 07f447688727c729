"""What each probe costs beside a round of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from torch import nn

from flbench.bench.compare import Settings
from flbench.bench.measure import Note, Spread, Variant, take_turns
from flbench.bench.workloads import Workload, data_for
from flbench.engine.lens import Lens
from flbench.engine.rounds import FederatedTrainer
from flbench.engine.setup import executor_for, make_network, make_trainer, matmul_precision_restored
from flbench.probes import Observation, Probe

#: The probes that are measured, and the rounds between two of their looks.
EVERY: Mapping[str, int] = {"features": 50, "drift": 50, "sharpness": 50, "overfit": 50}

ROUND = "a round"
BETWEEN = "a round between looks"
KEEPING = "a round that keeps models"


@dataclass(frozen=True)
class Look:
    """One probe.

    Attributes:
        every: rounds between two looks.
        seconds: of a look.
        rounds: the same in rounds of training, each ratio taken within one turn.
        share: of the time of training and all looks.
    """

    probe: str
    every: int
    seconds: Spread
    rounds: Spread
    share: float


@dataclass(frozen=True)
class ProbeCosts:
    """What the probes cost one workload.

    Attributes:
        round_s: seconds of a round without probes.
        between: how a round with probes, of which none is due, compares with it, turn by turn.
        keeping: likewise a round that keeps what the clients sent, for a probe that wants to see it.
        share: of all looks together.
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
    looks: Sequence[Look]
    share: float


def probe_costs(workload: Workload, settings: Settings, *, note: Note) -> ProbeCosts:
    """Measure every probe of ``EVERY`` on a workload, in turns with its rounds."""
    fields = {"norm": settings.norm, "precision": settings.precision, "eval_every": 10}
    plain = workload.experiment(settings.device, **fields)
    probing = workload.experiment(settings.device, **fields, probes=dict(EVERY))
    data = data_for(plain, settings.data_root)
    executor = executor_for(plain, data, device=settings.device, wanted="auto")

    def trainer() -> FederatedTrainer:
        made, _ = make_trainer(plain, data, device=settings.device, executor=executor, pool=settings.threads)
        return cast(FederatedTrainer, made)

    probes = cast(tuple[Probe, ...], probing.probes)
    rounds = settings.rounds or workload.turn(settings.device)
    variant = partial(Variant, precision=settings.precision, cores=settings.threads)
    with matmul_precision_restored():
        seen = _observation(trainer(), make_network(plain, data, settings.device), plain.lr)
        variants = [
            variant(ROUND, partial(trainer().step, wait=True), rounds=rounds),
            variant(BETWEEN, partial(_round_between, trainer(), probes), rounds=rounds),
            variant(KEEPING, partial(trainer().step, keep_clients=True, wait=True), rounds=rounds),
            *(variant(probe.name, partial(probe.measure, seen)) for probe in probes),
        ]
        seconds = take_turns(variants, repeats=settings.repeats, note=_named(workload.name, note))
    looks = _looks(probes, seconds)
    return ProbeCosts(
        workload=workload.name,
        what=workload.what,
        norm=plain.norm.label(),
        data="random images" if data.fingerprint == "random" else data.fingerprint,
        device=settings.device,
        executor=executor,
        round_s=Spread.of(seconds[ROUND]),
        between=_ratios(seconds[BETWEEN], seconds[ROUND]),
        keeping=_ratios(seconds[KEEPING], seconds[ROUND]),
        looks=looks,
        share=sum(look.share for look in looks),
    )


def _named(workload: str, note: Note) -> Note:
    return lambda what, done, total: note(f"{workload}, probes: {what}", done, total)


def _round_between(trainer: FederatedTrainer, probes: Sequence[Probe]) -> None:
    """A round of a run with probes after which none is due, with what ``execution`` asks before it."""
    due = [probe for probe in probes if probe.is_due(1, 10**9)]
    trainer.step(keep_clients=any(probe.needs_clients for probe in due), wait=True)


def _observation(trainer: FederatedTrainer, network: nn.Module, lr: float) -> Observation:
    """What there is to see after one round."""
    before = trainer.x
    report = trainer.step(keep_clients=True, wait=True)
    lens = Lens(trainer, network, lr)
    return Observation(trainer.round, before, trainer.x, report.client_params, report.weights_S, lens)


def _looks(probes: Sequence[Probe], seconds: Mapping[str, Sequence[float]]) -> list[Look]:
    """The looks' costs, and what share they are of ``every`` rounds and all looks that fall into these."""
    rounds = seconds[ROUND]
    a_look = {probe.name: Spread.of(seconds[probe.name]) for probe in probes}
    each_round = {name: spread.median / EVERY[name] for name, spread in a_look.items()}
    whole = Spread.of(rounds).median + sum(each_round.values())
    return [
        Look(
            probe=name,
            every=EVERY[name],
            seconds=spread,
            rounds=_ratios(seconds[name], rounds),
            share=each_round[name] / whole,
        )
        for name, spread in a_look.items()
    ]


def _ratios(values: Sequence[float], to: Sequence[float]) -> Spread:
    return Spread.of([value / other for value, other in zip(values, to, strict=True)])
