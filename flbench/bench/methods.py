"""Time rounds of several methods in turns, relative to FedAvg's."""

from __future__ import annotations

from collections.abc import Sequence
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
from flbench.engine.setup import executor_for, make_trainer, matmul_precision_restored

#: The method whose rounds are the unit of all others.
UNIT = "fedavg"


@dataclass(frozen=True)
class MethodCost:
    """The cost of one method with one executor.

    Attributes:
        round_s: seconds of a round.
        factor: the same in rounds of FedAvg with that executor; each ratio within one turn.
    """

    method: str
    executor: str
    round_s: Spread
    factor: Spread


@dataclass(frozen=True)
class MethodCosts:
    """The cost of methods on one workload; ``auto`` is the executor that ``--executor auto`` selects for it."""

    workload: str
    what: str
    norm: str
    data: str
    device: str
    auto: str
    rounds: int
    rows: Sequence[MethodCost]


def method_costs(workload: Workload, settings: Settings, methods: Sequence[str], *, note: Note) -> MethodCosts:
    """Time methods on a workload, in turns with FedAvg: on a CPU with both executors, on a GPU as recorded graphs.

    Args:
        workload: what is trained.
        settings: how to measure.
        methods: names of methods; FedAvg comes first, whether it is among them or not.
        note: called before every turn.

    Returns:
        A row for each executor and method.

    Raises:
        UserError: a method is unknown, or does not fit the workload.
    """
    fields = {"norm": settings.norm, "precision": settings.precision}
    experiments = {
        name: workload.experiment(settings.device, **fields, method=name) for name in dict.fromkeys([UNIT, *methods])
    }
    plain = experiments[UNIT]
    data, rounds = data_for(plain, settings.data_root), settings.rounds or workload.turn(settings.device)
    executors: list[UsedExecutor] = ["stacked"] if settings.device == "cuda" else ["loop", "stacked"]
    variants = [
        _variant(name, one, data, settings, executor, rounds)
        for executor in executors
        for name, one in experiments.items()
    ]
    with matmul_precision_restored():
        seconds = take_turns(
            variants,
            repeats=settings.repeats,
            note=lambda what, done, total: note(f"{workload.name}: {what}", done, total),
        )
    return MethodCosts(
        workload=workload.name,
        what=workload.what,
        norm=plain.norm.label(),
        data=name_of(data),
        device=settings.device,
        auto=executor_for(plain, data, device=settings.device, wanted="auto"),
        rounds=rounds,
        rows=[
            MethodCost(name, executor, Spread.of(own), Spread.of_ratios(own, seconds[f"{executor}, {UNIT}"]))
            for executor in executors
            for name in experiments
            for own in [seconds[f"{executor}, {name}"]]
        ],
    )


def _variant(
    name: str, experiment: Federated, data: Data, settings: Settings, executor: UsedExecutor, rounds: int
) -> Variant:
    """Rounds of one method; the loop has a pool of one, so that both executors keep one core busy."""
    trainer, _ = make_trainer(experiment, data, device=settings.device, executor=executor, pool=1)
    work = partial(cast(FederatedTrainer, trainer).step, wait=False)
    return Variant(f"{executor}, {name}", work, settings.precision, rounds=rounds)
