"""What each probe costs beside a round of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

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


@dataclass(frozen=True)
class Look:
    """One probe.

    Attributes:
        every: rounds between two looks.
        seconds: of a look; where it looks at what the clients sent, what keeping that costs is in it.
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
        watched = trainer()
        network = make_network(plain, data, settings.device)
        variants = [
            variant(ROUND, partial(trainer().step, wait=True), rounds=rounds),
            variant(BETWEEN, partial(_round_between, trainer(), probes), rounds=rounds),
            *(variant(one.name, partial(_look, watched, one, Lens(watched, network, plain.lr))) for one in probes),
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
        between=Spread.of([after / before for after, before in zip(seconds[BETWEEN], seconds[ROUND], strict=True)]),
        looks=looks,
        share=sum(look.share for look in looks),
    )


def _named(workload: str, note: Note) -> Note:
    return lambda what, done, total: note(f"{workload}, probes: {what}", done, total)


def _round_between(trainer: FederatedTrainer, probes: Sequence[Probe]) -> None:
    """A round of a run with probes after which none is due, with what ``execution`` asks before it."""
    due = [probe for probe in probes if probe.is_due(1, 10**9)]
    trainer.step(keep_clients=any(probe.needs_clients for probe in due), wait=True)


def _look(trainer: FederatedTrainer, probe: Probe, lens: Lens) -> None:
    """A look, and before it a round whose participants' models are kept, if the probe wants to see them."""
    before, clients, weights = trainer.x, None, None
    if probe.needs_clients:
        report = trainer.step(keep_clients=True, wait=True)
        clients, weights = report.client_params, report.weights_S
    probe.measure(Observation(trainer.round, before, trainer.x, clients, weights, lens))


def _looks(probes: Sequence[Probe], seconds: Mapping[str, Sequence[float]]) -> list[Look]:
    """The looks' costs, and what share they are of ``every`` rounds and all looks that fall into these."""
    rounds = seconds[ROUND]
    costs = {probe.name: _costs(probe, seconds[probe.name], rounds) for probe in probes}
    spreads = {name: Spread.of(values) for name, values in costs.items()}
    each_round = {probe.name: spreads[probe.name].median / EVERY[probe.name] for probe in probes}
    whole = Spread.of(rounds).median + sum(each_round.values())
    return [
        Look(
            probe=name,
            every=EVERY[name],
            seconds=spreads[name],
            rounds=Spread.of([look / round for look, round in zip(values, rounds, strict=True)]),
            share=each_round[name] / whole,
        )
        for name, values in costs.items()
    ]


def _costs(probe: Probe, seconds: Sequence[float], rounds: Sequence[float]) -> list[float]:
    """Seconds of a look alone, turn by turn."""
    trained = rounds if probe.needs_clients else [0.0] * len(rounds)
    return [max(0.0, look - round) for look, round in zip(seconds, trained, strict=True)]
